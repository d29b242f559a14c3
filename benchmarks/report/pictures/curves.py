"""The paper's curves, measured here: Figures 3, 4 and 6, and the rate of Theorem 1; means over seeds."""

from collections.abc import Sequence

from markupsafe import Markup

from benchmarks.baselines.nonlinear import Kind
from benchmarks.paper.theory.fine_tuning import DIFFUSED, FROM_ZERO, ITERATIONS, PLAIN
from benchmarks.report.pictures.axes import Scale
from benchmarks.report.pictures.svg import IN_PAGE, Line, lines_by_size
from benchmarks.report.results import LETHE, REPAIRED, RETRAINED, Results, called, of_method
from benchmarks.report.section import Picture

#: Lines of Figure 3 and their style: one colour for each idea, as in distance against time.
_CLOSE = {
    LETHE: "colour1",
    REPAIRED: "colour1 dashed",
    "projector, option 1 as printed": "colour2",
    "projector, official code": "colour2 dashed",
    "influence": "colour3",
    "influence+": "colour3 dashed",
    "fisher+": "colour3 dotted",
    "fisher+, without noise": "colour3 dash-dotted",
    "graph eraser, linear, metis, mean": "colour4",
}
#: Lines of Figure 4: the projection and retrained models.
_ROBUST = {
    LETHE: "colour1",
    RETRAINED: "colour0",
    f"{LETHE}, with diffusion": "colour1 dashed",
    f"{RETRAINED}, with diffusion": "colour0 dashed",
    **{str(kind): f"colour{n}" for n, kind in enumerate((Kind.GCN, Kind.SAGE, Kind.GAT, Kind.APPNP), start=2)},
    "gcn, graphsaint": "colour2 dashed",
}
#: Starting points of fine-tuning, as named in cases.
_STARTS = {"from projection": "{}", "from zero": FROM_ZERO}
_SETS = {"training": "train", "validation": "validation", "test": "accuracy"}

Points = list[tuple[float, float]]


def closeness_curves(results: Results, dataset: str) -> Sequence[Picture]:
    """Return Figure 3: the distance to retraining by the share deleted, of the weights and of the answers for test
    nodes.

    The repair is so much closer that the other lines merge beside it. So they are also drawn without it.
    """
    others = [method for method in _CLOSE if method != REPAIRED]
    return [
        *_distances(results, dataset, "weights", tuple(_CLOSE), "distance of the weights to retraining"),
        *_distances(results, dataset, "weights", others, "distance of the weights, without the repair"),
        *_distances(results, dataset, "test", others, "distance of the answers for test nodes, without the repair"),
    ]


def _distances(results: Results, dataset: str, figure: str, methods: Sequence[str], words: str) -> Sequence[Picture]:
    lines = []
    for method in methods:
        found = [
            (100 * float(share), results.mean("closeness", dataset, method, share, figure))
            for share in results.cases("closeness", dataset)
        ]
        # A logarithmic axis cannot show an exact match with retraining.
        lines.append(Line(method, [(share, away) for share, away in found if away], _CLOSE[method]))
    title = f"{called(dataset)} by the share deleted: {words}"
    return _picture(lines, title, "training nodes deleted, %", "distance to retraining", x=Scale.EVEN)


def robustness_curves(results: Results, dataset: str) -> Sequence[Picture]:
    """Return Figure 4: test accuracy by the share deleted, starting from none."""
    shares = results.cases("robustness", dataset)
    lines = []
    for method, look in _ROBUST.items():
        key = ("robustness", dataset, method)
        none = (0.0, results.mean(*key, shares[0], "accuracy_before"))
        found = [none, *((100 * float(share), results.mean(*key, share, "accuracy_after")) for share in shares)]
        lines.append(
            Line(of_method(method), [(share, 100 * there) for share, there in found if there is not None], look)
        )
    title = f"{called(dataset)}: test accuracy by the share deleted"
    return _picture(lines, title, "training nodes deleted, %", "test accuracy, %", x=Scale.EVEN, y=Scale.EVEN)


def fine_tuning_curves(results: Results, dataset: str) -> Sequence[Picture]:
    """Return Figure 6, and the objective's distance to its minimum beside the rate of Theorem 1; plain and with
    diffusion.
    """
    return [
        picture
        for method, words in ((PLAIN, ""), (DIFFUSED, ", with diffusion"))
        for picture in (
            *_gaps(results, dataset, method, f"{called(dataset)}{words}"),
            *_accuracies(results, dataset, method, f"{called(dataset)}{words}"),
        )
    ]


def _gaps(results: Results, dataset: str, method: str, where: str) -> Sequence[Picture]:
    lines = [
        Line(f"{prefix}{name}", [each for each in _along(results, dataset, method, start, figure) if each[1] > 0], look)
        for name, start, colour in zip(_STARTS, _STARTS.values(), ("colour1", "colour0"), strict=True)
        for prefix, figure, look in (("", "gap", colour), ("bound ", "rate", f"{colour} dashed"))
    ]
    title = f"{where}: F − min F by steps of fine-tuning, and what the proof of Theorem 1 allows"
    return _picture(lines, title, "steps of gradient descent", "F − min F")


def _accuracies(results: Results, dataset: str, method: str, where: str) -> Sequence[Picture]:
    lines = []
    for colour, (nodes, figure) in enumerate(_SETS.items(), start=1):
        for name, start in _STARTS.items():
            points = [(taken, 100 * share) for taken, share in _along(results, dataset, method, start, figure)]
            lines.append(Line(f"{nodes}, {name}", points, f"colour{colour}" + " dashed" * (start == FROM_ZERO)))
    title = f"{where}: accuracy by steps of fine-tuning"
    return _picture(lines, title, "steps of gradient descent", "accuracy, %", y=Scale.EVEN)


def _along(results: Results, dataset: str, method: str, start: str, figure: str) -> Points:
    found = [(taken, results.mean("fine-tuning", dataset, method, start.format(taken), figure)) for taken in ITERATIONS]
    return [(taken, there) for taken, there in found if there is not None]


def _picture(
    lines: Sequence[Line], title: str, across: str, upwards: str, *, x: Scale = Scale.POWERS, y: Scale = Scale.POWERS
) -> Sequence[Picture]:
    """Return one picture, or none without results."""
    there = [line for line in lines if line.points]
    if not there:
        return ()
    return (Picture(Markup(lines_by_size(there, title, across, upwards, x=x, y=y, sheet=IN_PAGE)), title),)
