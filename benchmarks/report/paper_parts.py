"""Every table, figure and statement of the paper, and its place in this report."""

import re
from collections.abc import Sequence

from benchmarks.report.claims.verdicts import Finding, Source, in_words
from benchmarks.report.section import Table

#: The subject of each part, and a remark if no claim is judged.
PARTS = (
    ("Table 1", "the feature injection test", ""),
    ("Table 2", "linear and ordinary GNNs", ""),
    ("Table 3", "delta of Assumption 3", ""),
    ("Table 4", "dense and sparse nodes deleted", ""),
    ("Table 5", "membership inference", ""),
    ("Table 6", "fine-tuning", ""),
    ("Table 7", "the datasets", "Sizes, beside ours below; nothing is claimed."),
    ("Figure 1", "which rows a deletion changes", ""),
    ("Figure 2", "the projection, drawn", "An illustration of Proposition 1."),
    ("Figure 3", "distances to retraining", ""),
    ("Figure 4", "accuracy with more and more deleted", ""),
    (
        "Figure 5",
        "how membership inference works",
        "An illustration; benchmarks/paper/inference/membership.py names what it leaves open.",
    ),
    ("Figure 6", "accuracy while fine-tuning", ""),
    ("Figure 7", "how Theorem 1 is proven", "An illustration of the proof."),
    ("Algorithm 1", "Projector, options 1 and 2", ""),
    ("Proposition 1", "the projection in closed form", ""),
    (
        "Assumption 1",
        "bounds on rows, features and weights",
        "They hold for every graph and enter the bound of Theorem 1 below. Its proof takes one of them too small.",
    ),
    (
        "Assumption 2",
        "the gradient’s variance",
        "It holds for every graph and enters the bound of Theorem 1 below, with the gradients where retraining ends.",
    ),
    ("Abstract", "what the construction guarantees", ""),
    ("Introduction", "affected nodes", ""),
    ("Section 3.2", "the projection: what it needs, promises and costs", ""),
    ("Section 3.3", "how close the projection ends to retraining", ""),
    ("Section 3.4", "extensions: an MLP and adaptive diffusion", ""),
    ("Assumption 3", "features near the span of the others", ""),
    ("Theorem 1", "the distance to retraining, and fine-tuning", ""),
    ("Proposition 2", "closer than second-order methods", ""),
    ("Proposition 3", "expressiveness", ""),
    ("Theorem 2", "unlearning without modification", ""),
    ("Proposition 4", "support vector machines in the rows’ span", ""),
    ("Appendix on dependency", "why neighbours have to be updated", ""),
    (
        "Appendix on differential privacy",
        "a definition, why no noise is needed, and why no such bound exists",
        "",
    ),
    ("Appendix on closeness", "why closeness to retraining is not enough", ""),
    ("Appendix on baselines", "how the baselines are made", ""),
    ("Appendix on experiment setups", "lambda of the baselines", ""),
    ("Appendix on SVM", "the projection for support vector machines", ""),
)


def named(where: str) -> set[str]:
    """Return the parts that a claim's place names: "Tables 1, 2 and 6" are three."""
    found = {f"{kind} {number}" for kind, numbers in _NUMBERED.findall(where) for number in re.findall(r"\d+", numbers)}
    return found | {part for part, _, _ in PARTS if not _NUMBERED.fullmatch(part) and part in where}


_NUMBERED = re.compile(r"(Table|Figure|Theorem|Proposition|Assumption|Algorithm)s? (\d+(?:(?:, | and )\d+\b)*)")


def index(findings: Sequence[Finding]) -> Table:
    """Return a row for each part, with the verdicts on its claims."""
    rows = []
    for part, about, words in PARTS:
        here = [each for each in findings if part in named(each.claim.where)]
        judged = [each.verdict for each in here if each.claim.source is Source.PAPER]
        misprints = sum(each.claim.source is Source.MISPRINTS for each in here)
        counts = in_words(judged)
        counts += [f"{misprints} misprint{'s' * (misprints > 1)}"] * bool(misprints)
        rows.append((part, about, ", ".join(counts) or words))
    return Table(("", "about", "in this report"), rows, prose=True)
