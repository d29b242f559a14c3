"""All claims, each with the rule that judges it and the context of the verdict, by section of the report."""

from benchmarks.report.claims.certified import CLAIMS as CERTIFIED
from benchmarks.report.claims.closeness import CLAIMS as CLOSENESS
from benchmarks.report.claims.extensions import CLAIMS as EXTENSIONS
from benchmarks.report.claims.guarantee import CLAIMS as GUARANTEE
from benchmarks.report.claims.injection import CLAIMS as INJECTION
from benchmarks.report.claims.misprints import CLAIMS as MISPRINTS
from benchmarks.report.claims.ours import CLAIMS as OURS
from benchmarks.report.claims.robustness import CLAIMS as ROBUSTNESS
from benchmarks.report.claims.theory import CLAIMS as THEORY
from benchmarks.report.claims.verdicts import Claim

CLAIMS = (
    *GUARANTEE,
    *INJECTION,
    *CLOSENESS,
    *EXTENSIONS,
    *ROBUSTNESS,
    Claim(
        "Accuracies on ogbn-arxiv",
        "Tables 1, 2 and 6",
        "73.35 ± 0.12 with diffusion, 73.41 ± 0.31 with an MLP as well.",
        None,
        "OGB’s 128 features are not at hand. The arXiv graph here has a language model’s guesses as features. They are "
        "close to the labels, so its accuracies do not reproduce the paper’s.",
    ),
    Claim(
        "Everything on ogbn-products, Flickr and Reddit",
        "Tables 1, 2, 4 and 6",
        "Accuracies, times and the deletion of dense and sparse nodes.",
        None,
        "No copy of these datasets can be reached. The deletion of dense and sparse nodes is measured on others.",
    ),
    *THEORY,
    *MISPRINTS,
    *OURS,
    *CERTIFIED,
)
