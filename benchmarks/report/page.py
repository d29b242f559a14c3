"""The report: one HTML file of the results, which also lists what was not measured."""

import re
from pathlib import Path

import jinja2
from markupsafe import Markup

from benchmarks.baselines.catalogue import is_squared
from benchmarks.paper.experiments import EXCLUDED, plan
from benchmarks.report import authors_figure, tables
from benchmarks.report.attacks import sections as attack_sections
from benchmarks.report.claims.every import CLAIMS
from benchmarks.report.claims.misprints import INCONSISTENCIES
from benchmarks.report.claims.verdicts import Source, found, in_words
from benchmarks.report.early import sections as early_sections
from benchmarks.report.field import sections as field_sections
from benchmarks.report.first_page import lines
from benchmarks.report.headline import headline, missing, slower
from benchmarks.report.lira import sections as lira_sections
from benchmarks.report.paper_parts import index
from benchmarks.report.paper_tables import TABLES, Row, shown
from benchmarks.report.results import Results, called, number
from benchmarks.report.robustness_tables import sections as robustness_sections
from benchmarks.report.section import Table
from benchmarks.report.stream import stream_table
from benchmarks.report.theory_page import sections as theory_sections

_TEMPLATE = Path(__file__).with_name("page.html")
#: The methods' names in the tables.
_METHODS = (
    ("retraining", "Trains again without the deleted nodes; every other method is compared with it."),
    (
        "lethe, projection",
        "Projector as Lethe computes it: W projected on the span of all live nodes’ features.",
    ),
    ("lethe, projection and repair", "The same, continued to the minimum of the objective on the remaining graph."),
    (
        "projector, option 1 or 2 as printed",
        "Algorithm 1 as printed; option 1 projects on the span of training nodes alone.",
    ),
    ("projector, official code", "The authors’ code: option 1 in single precision, with all live nodes remaining."),
    ("influence", "Guo et al.: a Newton step that removes the deleted rows; trained with a random slope (noise)."),
    ("influence+", "The same, with neighbours’ rows replaced by their new ones."),
    (
        "influence+, authors' code",
        "As the authors once published it: neighbours are taken out of training, without noise. Here for all classes.",
    ),
    ("fisher+", "A Newton step on the remaining graph, and noise shaped by the Hessian."),
    (
        "certified removal; scalegun",
        "Newton steps, node by node, with a budget for the gradient that remains; retraining when it is spent. "
        "Lambda is 1e-2. ScaleGUN’s arrays are copied at each deletion here, and changed in place by its authors, so "
        "its times do not count.",
    ),
    ("closed-form sgc", "Ridge regression: its sums are updated by the changed rows, and solved again."),
    (
        "graph editor",
        "Ridge regression with targets of ±1: its inverse is updated by the changed rows. Also fine-tuned by 500 steps "
        "of Adam on the cross-entropy, and solved again.",
    ),
    ("…, squared loss", "Retraining and Lethe’s repair with the squared loss, to compare ridge regressions with."),
    (
        "projective residual",
        "Izzo et al.: ridge regression; a step, in the span of the deleted rows, towards retraining’s answers on them.",
    ),
    (
        "deltagrad; descent again",
        "Wu et al.: 500 steps of gradient descent replayed, with most gradients estimated from the first path by "
        "quasi-Newton updates. Compared with the same steps taken again, which end far from the optimum.",
    ),
    (
        "graph eraser, …",
        "Eight shards, cut by BEKM, BLPA or METIS; those with deleted nodes are trained again. Validation nodes of the "
        "whole graph judge a network every ten epochs and choose the best.",
    ),
    ("sisa", "Bourtoule et al.: eight shards cut at random, a model each, and a majority vote."),
    ("gif; idea", "Wu et al., Dong et al.: a step with the inverse Hessian, by a series; IDEA adds noise of 0.6."),
    ("megu", "Li et al.: descent that forgets and keeps at once; its answers are smoothed over the graph."),
    (
        "gnndelete",
        "Cheng et al.: the weights stay, and a matrix behind each layer makes deleted edges look like no edges.",
    ),
    ("gcn, sage, gat, appnp", "Non-linear networks of two layers, retrained."),
    (
        "graphsaint’s node sampler; graphsaint’s random walks",
        "GraphSAINT in two forms. With the node sampler the network is a two-layer GCN. With random walks it is the "
        "three-layer GraphSAGE of the paper’s code, measured under “Accuracies” alone.",
    ),
)
#: Settings in which our runs differ from the paper.
_SETTINGS = (
    (
        "lambda",
        "1e-6; larger for Influence+ and Fisher+ (in the authors’ code 1e-2 on Cora and Pubmed, 1e-3 on Citeseer)",
        "1e-4, so that all methods end near one optimum; 1e-2 for certified removal and ScaleGUN, as Chien et al. have",
    ),
    (
        "chosen by validation nodes",
        "when training, fine-tuning and each shard’s training stop",
        "a network’s best epoch; sh and sz of diffusion; lambda where it is varied; nothing for other linear models",
    ),
    (
        "training",
        "SGD with momentum 0.9, learning rate 0.1 or 1",
        "Newton's method to the optimum; the paper’s in “Trained as in the paper”, in groups named “stopped early” and "
        "in part of “Membership inference”",
    ),
    ("layers", "2 on Cora and Pubmed, 3 on arXiv with ShaDow sampling", "the same, the whole neighbourhood"),
    (
        "blocks",
        "all hops, and label reuse",
        "the last hop alone (the paper’s Eq. 1); all hops in “Accuracies”, “More and more deleted” and “Dense and "
        "sparse nodes deleted”",
    ),
    ("loss", "one class against the rest (Eq. 2)", "the same; softmax in “Accuracies” where no other is named"),
    ("z⁽⁰⁾ of diffusion", "y of every node but the test nodes", "y of training nodes; both in “Accuracies”"),
    (
        "times",
        "seconds on an RTX 3090",
        "seconds of the processor on the device named below, and multiples of Lethe's projection in the same run",
    ),
    ("Cora's split", "1,208 training nodes", "the same"),
    (
        "networks",
        "as in the examples of torch-geometric, on ogbn-arxiv as in OGB's",
        "two layers as in those examples, on unscaled rows. GCN has 64 hidden units, since most of the example’s 16 "
        "die on Amazon Photo, weight decay on both layers and no dropout of features. GraphSAGE sees all neighbours, "
        "for 200 epochs with weight decay",
    ),
)

#: What every verdict depends on.
_SETTING = (
    "Two trainings were measured. The paper trains by SGD with momentum 0.9 at lambda 1e-6 and stops early; for "
    "Influence+ and Fisher+ it takes a larger lambda that it does not print. The section “Trained as in the paper” "
    "does so on up to four graphs, without noise. In everything else, each linear model is trained to its optimum, in "
    "double precision, at lambda 1e-4 unless its row names another. A verdict whose claim depends on it counts both "
    "trainings: its groups named “stopped early” are trained as in the paper.",
    "The paper’s own data are here for Cora, Citeseer and Pubmed. Amazon Photo and Coauthor CS are added; so is the "
    "arXiv graph, with a language model’s features in place of OGB’s. ogbn-products, Flickr and Reddit cannot be "
    "reached.",
    "“Remaining” has two readings, and the paper prints both: training nodes without the deleted (Section 3.1), and "
    "all nodes without the deleted (Assumption 2). Its precondition needs all nodes. Lethe takes all live nodes, "
    "Option 1 as printed training nodes alone. Each claim that depends on it names the reading under “Remaining”, "
    "with both results where both were measured.",
    "All methods are compared with retraining without the deleted nodes. The channel is a feature that only the "
    "deleted nodes have; its norm measures how much of it the model holds.",
)


def write_page(folder: Path, file: Path) -> Path:
    """Write the report of the results below `folder` to `file`, and return `file`."""
    results = Results.of(folder)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(page(results))
    return file


def page(results: Results) -> str:
    """Return the report as one HTML document that loads no other files."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters |= {"anchor": _anchor, "called": called, "headings": _headings}
    findings = [found(claim, results) for claim in CLAIMS]
    by_source = {source: [each for each in findings if each.claim.source is source] for source in Source}
    counts = in_words([each.verdict for each in by_source[Source.PAPER]])
    return environment.from_string(_TEMPLATE.read_text()).render(
        first=lines(findings, results),
        counts=counts,
        findings={source.name: each for source, each in by_source.items()},
        setting=_SETTING,
        inconsistencies=Table(("where", "the paper states", "against it, in the paper"), INCONSISTENCIES, prose=True),
        headline=headline(results),
        slower=slower(results),
        headline_lacks=missing(results),
        parts=index(findings),
        tables=[(table, [_paper_row(row, results) for row in table.rows]) for table in TABLES],
        identity=tables.identity(results),
        repair=tables.repair(results),
        injection=[(called(each), tables.injection(results, each)) for each in results.datasets("injection")],
        regularization=tables.regularization(results),
        closeness=[(called(each), tables.closeness(results, each)) for each in results.datasets("closeness")],
        authors_figure=authors_figure.TITLE,
        accuracy=tables.accuracy(results),
        losses=tables.losses(results),
        stream=stream_table(results),
        sections=[
            *early_sections(results),
            *authors_figure.sections(results),
            *field_sections(results),
            *robustness_sections(results),
            *lira_sections(results),
            *attack_sections(results),
            *theory_sections(results),
        ],
        methods=Table(("method", "what it does"), _METHODS, prose=True),
        settings=Table(("", "the paper", "here"), _SETTINGS, prose=True),
        excluded=Table(("what", "why"), EXCLUDED, prose=True),
        missing=[(experiment, called(dataset), methods) for experiment, dataset, methods in results.missing()],
        unfinished=results.unfinished,
        made=_made(results),
        machines=_machines(results),
        units=f"{len(results.records):,}",
        planned=f"{len(plan()):,}",
    )


def _anchor(title: str) -> str:
    """Return the anchor of a heading."""
    return "-".join(re.findall(r"[a-z0-9]+", title.lower()))


def _headings(body: str) -> list[tuple[str, Markup]]:
    """Return the second-level headings in a part of the page: (anchor, title)."""
    return [(anchor, Markup(title)) for anchor, title in re.findall(r'<h2 id="([^"]*)">(.*?)</h2>', body)]


def _paper_row(row: Row, results: Results) -> list[str]:
    return [row.dataset, row.label, *(words for paper, ours in row.cells for words in (paper, shown(ours, results)))]


def _machines(results: Results) -> str:
    """Describe how much the same measurement took on different days: the base of all ratios."""
    took: dict[tuple[str, str, int, bool], list[float]] = {}
    for record in results.records:
        case = record["cases"].get("0.1", {})
        if case.get("times_lethe"):
            key = record["experiment"], record["dataset"], record["seed"], is_squared(record["method"])
            took.setdefault(key, []).append(case["seconds"] / case["times_lethe"])
    spans = [(max(each) / min(each), called(dataset)) for (_, dataset, *_), each in took.items() if len(each) > 1]
    if not spans:
        return ""
    ratio, dataset = max(spans)
    return (
        "Machines were shared, and the records are of several days, machines and versions of the code. The time of "
        f"Lethe’s projection for the same deletion of 10 % differs by up to {number(ratio)} times between two methods’ "
        f"runs ({dataset}). Times differ by as much, and ratios where not all times grew alike."
    )


def _made(results: Results) -> Table:
    """Return the devices, dates and commits of the results."""
    made: dict[tuple[str, ...], int] = {}
    for record in results.records:
        commit, *changed = record["commit"].split("-")
        key = (record["device"], str(record.get("threads", 1)), record["date"], "-".join([commit[:9], *changed]))
        made[key] = made.get(key, 0) + 1
    return Table(("device", "threads", "day", "commit", "units"), [[*key, str(count)] for key, count in made.items()])
