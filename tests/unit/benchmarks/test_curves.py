"""The paper's curves: every line is where its figures are, is named, and takes its colours from the page."""

import re
import xml.etree.ElementTree as ET
from itertools import pairwise
from typing import Any

import pytest

from benchmarks.paper.theory.fine_tuning import DIFFUSED, PLAIN
from benchmarks.report.page import page
from benchmarks.report.pictures.axes import Axis, Scale
from benchmarks.report.pictures.curves import closeness_curves, fine_tuning_curves, robustness_curves
from benchmarks.report.pictures.svg import IN_PAGE, Line, lines_by_size
from benchmarks.report.results import LETHE, REPAIRED, RETRAINED, Results
from tests.support.results import unit


def places(svg: str) -> dict[str, list[tuple[float, float]]]:
    """Where each line's points are, by its name."""
    found: dict[str, list[tuple[float, float]]] = {}
    points: list[tuple[float, float]] = []
    for each in ET.fromstring(svg):
        kind = each.tag.rpartition("}")[2]
        if kind == "polyline":
            points = [(float(x), float(y)) for x, y in (pair.split(",") for pair in each.attrib["points"].split())]
        elif "name" in each.attrib.get("class", "").split():
            found[each.text or ""] = points
    return found


def near(method: str, *away: float | None, **fields: Any) -> dict[str, Any]:
    cases = {share: {"weights": each, "test": each} for share, each in zip(("0.01", "0.1"), away, strict=True)}
    return unit("closeness", method, cases, **fields)


def left(method: str, before: float, *after: float) -> dict[str, Any]:
    shares = zip(("0.01", "0.2"), after, strict=True)
    return unit("robustness", method, {s: {"accuracy_before": before, "accuracy_after": a} for s, a in shares})


def tuned(method: str = PLAIN) -> dict[str, Any]:
    figures = {"train": 0.9, "validation": 0.8, "accuracy": 0.8}
    cases = {"after": {**figures, "gap": 2.0, "rate": 4.0}}
    for taken in (10, 100, 1000):
        cases[str(taken)] = {**figures, "gap": 1.0 / taken, "rate": 3.0 / taken}
        cases[f"from zero, {taken}"] = {**figures, "accuracy": 0.1, "gap": 100.0 / taken, "rate": 300.0 / taken}
    return unit("fine-tuning", method, cases)


@pytest.mark.parametrize(
    ("scale", "values", "ticks"),
    [
        (Scale.POWERS, (3e-10, 4.0), [f"10{each}" for each in ("⁻¹⁰", "⁻⁹", "⁻⁸")]),
        (Scale.POWERS, (1e-14, 1.0), ["≤ 10⁻¹²", "10⁻¹¹", "10⁻¹⁰"]),
        (Scale.POWERS, (10.0, 10.0), ["10", "100"]),
        (Scale.EVEN, (0.0, 20.0), ["0", "5", "10", "15", "20"]),
        (Scale.EVEN, (85.3, 88.5), ["85", "86", "87", "88", "89"]),
        (Scale.EVEN, (0.7, 0.7), ["0.6", "0.8"]),
    ],
)
def test_an_axis_has_all_values_between_its_ends(scale: Scale, values: tuple[float, float], ticks: list[str]) -> None:
    axis = Axis.over(scale, values, 400.0, 100.0)
    assert [words for _, words in axis.ticks][: len(ticks)] == ticks
    assert axis.at(axis.ticks[0][0]) == 400.0
    assert axis.at(axis.ticks[-1][0]) == pytest.approx(100.0)
    assert all(100.0 <= axis.at(each) <= 400.0 for each in values)


def test_names_of_lines_that_end_together_at_the_bottom_stay_in_the_picture_and_apart() -> None:
    lines = [Line("high", [(1.0, 1.0), (2.0, 1.0)]), *(Line(str(n), [(1.0, 1e-3), (2.0, 1e-3)]) for n in range(9))]
    svg = lines_by_size(lines, "A picture", "across", "upwards", sheet=IN_PAGE)
    named = [float(each) for each in re.findall(r'<text class="name[^>]* y="([\d.]+)"', svg)]
    assert min(second - first for first, second in pairwise(named)) >= 15
    assert named[-1] < IN_PAGE.height - 40


def test_figure_3_goes_by_the_share_and_draws_the_others_without_the_repair_again() -> None:
    results = Results([near(LETHE, 0.1, 0.3), near(REPAIRED, 6e-10, 5e-10), near("influence", 0.8, 0.9)])
    whole, weights, test = closeness_curves(results, "cora")
    assert set(places(whole.svg)) == {LETHE, REPAIRED, "influence"}
    assert set(places(weights.svg)) == set(places(test.svg)) == {LETHE, "influence"}
    (_, small), (_, large) = places(weights.svg)[LETHE]
    assert large < small
    assert "without the repair" in weights.words
    assert "without the repair" not in whole.words


def test_what_is_as_retraining_to_the_last_digit_or_not_measured_has_no_place_on_a_logarithm() -> None:
    results = Results([near(LETHE, 0.0, 0.3), near("influence", None, 0.9), near("fisher+", 0.0, None)])
    drawn = places(closeness_curves(results, "cora")[0].svg)
    assert {name: len(points) for name, points in drawn.items()} == {LETHE: 1, "influence": 1}
    assert not closeness_curves(Results([near("gcn", None, None)]), "cora")


def test_figure_4_begins_before_the_deletion_on_even_axes() -> None:
    (picture,) = robustness_curves(Results([left(LETHE, 0.88, 0.87, 0.8), left(RETRAINED, 0.88, 0.86, 0.86)]), "cora")
    lines = places(picture.svg)
    assert set(lines) == {LETHE, RETRAINED}
    (none, before), (little, after), (most, last) = lines[LETHE]
    assert (little - none) / (most - none) == pytest.approx(1 / 20, abs=1e-2)
    assert (after - before) / (last - before) == pytest.approx(1 / 8, abs=1e-2)


def test_fine_tuning_is_drawn_with_its_bound_from_both_starts_with_and_without_diffusion() -> None:
    gaps, accuracies = fine_tuning_curves(Results([tuned()]), "cora")
    lines = places(gaps.svg)
    assert set(lines) == {"from projection", "bound from projection", "from zero", "bound from zero"}
    assert all(len(points) == 3 for points in lines.values())
    # A rate of 1/K is a straight line on these axes.
    steps = [second[1] - first[1] for first, second in pairwise(lines["from zero"])]
    assert steps[0] == pytest.approx(steps[1], abs=0.2)
    assert {name for name in places(accuracies.svg) if name.endswith("zero")} == {
        f"{each}, from zero" for each in ("training", "validation", "test")
    }
    assert [
        each.words.startswith("Cora, with diffusion")
        for each in fine_tuning_curves(Results([tuned(), tuned(DIFFUSED)]), "cora")
    ] == [False, False, True, True]


def test_the_page_draws_them_in_its_own_colours_with_a_title_for_those_who_do_not_see_them() -> None:
    text = page(Results([near(LETHE, 0.1, 0.3), left(LETHE, 0.88, 0.87, 0.8), tuned()]))
    pictures = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(pictures) == 6
    for each in pictures:
        assert re.match(r'<svg [^>]*role="img"><title>Cora', each)
        assert "<style" not in each
    looks = set(re.findall(r'<polyline class="(colour\d)', text))
    assert looks
    for look in looks:
        assert f"svg .{look} {{ --hue: var(--" in text
