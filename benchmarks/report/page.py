"""The report: one HTML file of what was measured, which names what was not."""

import re
from math import log10
from pathlib import Path
from statistics import fmean

import jinja2
from markupsafe import Markup

from benchmarks.baselines.protocol import LAMBDAS
from benchmarks.paper.experiments import EXCLUDED
from benchmarks.paper.setting import CERTIFIED, CERTIFIED_LAMBDA
from benchmarks.report.attacks import sections as attack_sections
from benchmarks.report.claims.every import CLAIMS
from benchmarks.report.claims.judging import Verdict, best_lambda, found
from benchmarks.report.first_page import lines
from benchmarks.report.lira import sections as lira_sections
from benchmarks.report.paper_parts import index
from benchmarks.report.paper_tables import TABLES, Row, shown
from benchmarks.report.pictures.curves import closeness_curves
from benchmarks.report.pictures.svg import Point, distance_against_time
from benchmarks.report.results import LETHE, NAMES, REPAIRED, RETRAINED, Results, number, percent, spread
from benchmarks.report.robustness_tables import sections as robustness_sections
from benchmarks.report.section import Picture, Table
from benchmarks.report.stream import stream_table
from benchmarks.report.theory_page import sections as theory_sections

_TEMPLATE = Path(__file__).with_name("page.html")
#: The methods' names in the tables.
_METHODS = (
    ("retraining", "Trains anew without the deleted nodes: what every other is compared with."),
    ("lethe, projection", "Projector’s idea as Lethe computes it: W projected on the span of all remaining features."),
    ("lethe, projection and repair", "From there on to the minimum of the objective on the remaining graph."),
    (
        "projector, option 1 or 2 as printed",
        "Algorithm 1 to the letter; option 1 spans training nodes alone.",
    ),
    ("projector, official code", "What the authors published: option 1 in single precision, of all remaining nodes."),
    ("influence", "Guo et al.: a Newton step that takes the deleted rows away; trained with a random slope (noise)."),
    ("influence+", "The same, with neighbours’ rows exchanged for their new ones."),
    (
        "influence+, authors' code",
        "The same as once published: neighbours are taken out of training, and no noise. Here of all columns of W.",
    ),
    ("fisher+", "A Newton step on the remaining graph, and noise shaped by the Hessian."),
    (
        "certified removal; scalegun",
        "Newton steps, node by node, with a budget for what they leave; training anew when it is spent. At lambda "
        "1e-2. ScaleGUN's arrays are copied at each deletion, where theirs are changed in place: its times say little.",
    ),
    (
        "graph eraser, …",
        "Eight shards, cut by BEKM, BLPA or METIS, those with deleted nodes trained anew; a network's epoch, of every "
        "tenth, is chosen by the whole graph's validation nodes.",
    ),
    ("gcn, sage, gat, appnp, graphsaint", "Non-linear networks, trained anew."),
)
#: What our runs take where the paper takes something else.
_SETTINGS = (
    (
        "lambda",
        "1e-6; larger for Influence+ and Fisher+",
        "1e-4, so that all come near to one optimum; certified removal and ScaleGUN 1e-2, as Chien et al. publish",
    ),
    ("training", "SGD with momentum 0.9, learning rate 0.1 or 1", "Newton's method to the optimum"),
    ("layers", "2 on Cora and Pubmed, 3 on arXiv with ShaDow sampling", "the same, the whole neighbourhood"),
    (
        "blocks",
        "all hops, and label reuse",
        "the last hop alone (the paper's Eq. 1); all hops among the accuracies, and where more and more, dense or"
        " sparse nodes are deleted",
    ),
    ("z⁽⁰⁾ of diffusion", "y of every node but the test nodes", "y of training nodes; among the accuracies both"),
    (
        "times",
        "seconds on an RTX 3090",
        "seconds of the processor on the device named below, and multiples of Lethe's projection in the same run",
    ),
    ("Cora's split", "1,208 training nodes", "the same"),
    (
        "networks",
        "as in the examples of torch-geometric, on ogbn-arxiv as in OGB's",
        "two layers by those examples, on the rows as they are: GCN of 64 hidden units instead of 16, most of which die"
        " on Amazon Photo, with weight decay on both layers and no dropout of features; GraphSAGE on all neighbours for"
        " 200 epochs, with weight decay",
    ),
)


def write_page(folder: Path, file: Path) -> Path:
    """Writes the report of the results below `folder` into `file`, and returns it."""
    results = Results.of(folder)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(page(results))
    return file


def page(results: Results) -> str:
    """The report as one HTML document that loads nothing."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters |= {"anchor": _anchor, "headings": _headings}
    findings = [found(claim, results) for claim in CLAIMS]
    counts = {verdict: sum(each.verdict is verdict for each in findings) for verdict in Verdict}
    return environment.from_string(_TEMPLATE.read_text()).render(
        first=lines(findings, results),
        counts=counts,
        findings=findings,
        parts=index(findings),
        tables=[(table, [_paper_row(row, results) for row in table.rows]) for table in TABLES],
        identity=_identity(results),
        repair=_repair(results),
        injection=[(_name(each), _injection(results, each)) for each in results.datasets("injection")],
        regularization=_regularization(results),
        closeness=[(_name(each), _closeness(results, each)) for each in results.datasets("closeness")],
        accuracy=_accuracy(results),
        stream=stream_table(results),
        sections=[
            *robustness_sections(results),
            *lira_sections(results),
            *attack_sections(results),
            *theory_sections(results),
        ],
        methods=Table(("method", "what it does"), _METHODS, prose=True),
        settings=Table(("", "the paper", "here"), _SETTINGS, prose=True),
        excluded=Table(("what", "why"), EXCLUDED, prose=True),
        missing=[(experiment, _name(dataset), methods) for experiment, dataset, methods in results.missing()],
        unfinished=results.unfinished,
        made=_made(results),
        machines=_machines(results),
        units=len(results.records),
    )


def _anchor(title: str) -> str:
    """What a link calls a heading."""
    return "-".join(re.findall(r"[a-z0-9]+", title.lower()))


def _headings(body: str) -> list[tuple[str, Markup]]:
    """Those of the second level in a part of the page: (anchor, title)."""
    return [(anchor, Markup(title)) for anchor, title in re.findall(r'<h2 id="([^"]*)">(.*?)</h2>', body)]


def _paper_row(row: Row, results: Results) -> list[str]:
    return [row.dataset, row.label, *(words for paper, ours in row.cells for words in (paper, shown(ours, results)))]


def _name(dataset: str) -> str:
    return NAMES.get(dataset, dataset)


def _called(method: str) -> str:
    """A method's name, with its lambda where that is not the others'."""
    return f"{method} (lambda 1e{log10(CERTIFIED_LAMBDA):.0f})" if method in CERTIFIED else method


def _identity(results: Results) -> Table:
    """Share of deletions in which no direction is lost; draws of all seeds together."""
    rows = []
    for dataset in results.datasets("identity"):
        size = results.size(dataset)
        sizes = [f"{size[each]:,}" for each in ("nodes", "features")] if size else ["–", "–"]
        cells = []
        for case in ("single", "0.01", "0.05", "0.1"):
            key = ("identity", dataset, LETHE, case)
            draws, unchanged = sum(results.values(*key, "draws")), sum(results.values(*key, "unchanged"))
            if case == "single" and draws:
                cells.append(f"{unchanged / draws:.2%}")
            else:
                cells.append(f"{unchanged:.0f} of {draws:.0f}" if draws else "–")
        rows.append([_name(dataset), *sizes, *cells])
    return Table(("dataset", "nodes", "features", "each node alone", "random 1 %", "random 5 %", "random 10 %"), rows)


def _repair(results: Results) -> Table:
    """Distance to retraining of the projection alone and with repair."""
    rows = []
    for dataset in results.datasets("closeness"):
        for case in results.cases("closeness", dataset):
            cells = [results.values("closeness", dataset, each, case, "weights") for each in (LETHE, REPAIRED)]
            times = [results.mean("closeness", dataset, each, case, "seconds") for each in (LETHE, REPAIRED, RETRAINED)]
            if all(cells):
                rows.append([_name(dataset), f"{float(case):.0%}", *map(spread, cells), *map(number, times)])
    head = ("dataset", "deleted", "projection", "with repair", "projection, s", "with repair, s", "retraining, s")
    return Table(head, rows)


def _injection(results: Results, dataset: str) -> Table:
    """Every method's line of the feature injection test."""
    rows = []
    for method in results.methods("injection", dataset):
        for case in results.cases("injection", dataset):
            key = ("injection", dataset, method, case)
            if not results.values(*key, "seconds"):
                continue
            away = results.values("closeness", dataset, method, case, "weights")
            rows.append(
                [
                    _called(method),
                    f"{float(case):.0%}",
                    spread(results.values(*key, "channel_norm_before")),
                    spread(results.values(*key, "channel_norm_after")),
                    percent(results.values(*key, "accuracy_before")),
                    percent(results.values(*key, "accuracy_after")),
                    spread(away),
                    spread(results.values(*key, "seconds")),
                    spread(results.values(*key, "times_lethe")),
                    str(len(results.values(*key, "seconds"))),
                ]
            )
    head = ("method", "deleted", "channel before", "after", "accuracy before, %", "after, %")
    return Table((*head, "distance to retraining", "time, s", "ratio to Lethe's", "seeds"), rows)


def _regularization(results: Results) -> Table:
    """Each method's accuracies after the deletion at every lambda, and the lambda that validation nodes choose."""
    lambdas = [f"{each:g}" for each in LAMBDAS]
    rows = []
    for dataset in results.datasets("regularization"):
        for method in results.methods("regularization", dataset):
            key = ("regularization", dataset, method)
            cells = [percent(results.values(*key, each, "accuracy_after")) for each in lambdas]
            rows.append([method, _name(dataset), *cells, best_lambda(results, dataset, method) or "–"])
    return Table(("method", "dataset", *lambdas, "chosen"), rows)


def _closeness(results: Results, dataset: str) -> Table:
    """Every method's distances, the picture of one share, and that of all."""
    rows, points = [], []
    cases = results.cases("closeness", dataset)
    share = "0.01" if "0.01" in cases else cases[0]
    for place, method in enumerate(results.methods("closeness", dataset), start=1):
        for case in cases:
            key = ("closeness", dataset, method, case)
            away, seconds = (results.values(*key, each) for each in ("weights", "seconds"))
            if not seconds:
                continue
            figures = [
                spread(results.values(*key, each)) for each in ("weights", "deleted", "remaining", "test", "seconds")
            ]
            ratios = results.values(*key, "times_lethe")
            rows.append(
                [f"{place}. {_called(method)}", f"{float(case):.0%}", *figures, spread(ratios), str(len(seconds))]
            )
            if case == share and ratios and away:
                points.append(Point(place, _called(method), _family(method), fmean(ratios), fmean(away)))
    title = f"{_name(dataset)}, {float(share):.0%} deleted: distance of the weights to retraining against time"
    against_time = [Picture(Markup(distance_against_time(points, title)), title)] if points else []
    told = ("weights", "deleted nodes", "remaining", "test", "time, s", "ratio to Lethe's", "seeds")
    return Table(("method", "deleted", *told), rows, pictures=(*against_time, *closeness_curves(results, dataset)))


def _family(method: str) -> str:
    """The colour of a method."""
    return next((each for each in ("lethe", "projector", "eraser", "retraining") if each in method), "newton")


def _accuracy(results: Results) -> Table:
    """Test accuracies, a line for each model."""
    datasets = results.datasets("accuracy")
    methods = dict.fromkeys(method for each in datasets for method in results.methods("accuracy", each))
    rows = [
        [method, *(percent(results.values("accuracy", each, method, "all", "accuracy")) for each in datasets)]
        for method in methods
    ]
    return Table(("model", *map(_name, datasets)), rows)


def _machines(results: Results) -> str:
    """How much the same took on one day and another."""
    slower = []
    for dataset in results.datasets("injection"):
        seconds = results.values("injection", dataset, LETHE, "0.1", "seconds")
        if len(seconds) > 1:
            slower.append((max(seconds) / min(seconds), _name(dataset)))
    if not slower:
        return ""
    ratio, dataset = max(slower)
    return (
        f"Machines are shared, and records are not all of one day and machine: Lethe’s own time for 10 % differs up to "
        f" {number(ratio)} times between seeds ({dataset}). That is in the deviations of times and of ratios."
    )


def _made(results: Results) -> Table:
    """On what, when and of which commit."""
    made: dict[tuple[str, ...], int] = {}
    for record in results.records:
        commit, *changed = record["commit"].split("-")
        key = (record["device"], str(record.get("threads", 1)), record["date"], "-".join([commit[:9], *changed]))
        made[key] = made.get(key, 0) + 1
    return Table(("device", "threads", "day", "commit", "units"), [[*key, str(count)] for key, count in made.items()])
