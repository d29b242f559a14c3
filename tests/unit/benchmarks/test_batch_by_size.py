"""A batch by the size of the graph: all parts are there and add up, slopes are right, the picture has every line."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from benchmarks.performance.scale.batch_by_size import (
    IDLE,
    PARTS,
    PRODUCT,
    REST,
    ROWS,
    WHOLE,
    Measured,
    Stopwatch,
    one_batch,
    picture,
    report,
    served,
    shape_of,
    slope,
)
from benchmarks.report.pictures.svg import Line, lines_by_size


def made_up(nodes: int, power: float) -> Measured:
    times = {name: (taken / 2, taken, 2 * taken) for name, taken in ((name, 1e-6 * nodes**power) for name in ROWS)}
    return Measured(nodes, 3, times, 1.5, 20, 0.1, "a device")


def test_every_part_of_a_batch_is_timed_and_the_nodes_are_gone() -> None:
    resident, watch = served(shape_of(600)), Stopwatch()
    nodes = np.random.default_rng(0).choice(600, 8, replace=False)
    assert one_batch(resident, [str(node) for node in nodes], watch) > 0
    assert set(watch.spent) == {*PARTS, REST, IDLE}
    assert all((took > 0).all() for took in watch.spent.values())
    assert not resident.committed.state.live[nodes].any()
    assert (resident.committed.node_ids.rows_of([str(node) for node in nodes]) == -1).all()


def test_a_part_is_without_the_parts_inside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(np.array([[1.0, 0.5], [3.0, 1.0], [7.0, 2.0], [12.0, 5.0]]))
    monkeypatch.setattr("benchmarks.performance.scale.batch_by_size._now", lambda: next(ticks))
    watch = Stopwatch()
    with watch.part("outside"), watch.part("inside"):
        pass
    assert watch.spent["inside"].tolist() == [4.0, 1.0]
    assert watch.spent["outside"].tolist() == [7.0, 3.5]


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 1.7])
def test_the_slope_of_a_power_law_is_its_power(power: float) -> None:
    assert slope([(n, 3e-7 * n**power) for n in (10_000, 100_000, 1_000_000, 10_000_000)]) == pytest.approx(power)


def test_table_and_picture_have_every_part_with_its_slope() -> None:
    sizes = [made_up(n, 0.75) for n in (10_000, 100_000)]
    rows, text = report(sizes), picture(sizes)
    for name in (WHOLE, *PARTS, REST, PRODUCT, IDLE):
        assert re.search(rf"\| {re.escape(name)} \|.*\| 0.75 \| 0.75 \|", rows)
        assert f"{name}: 0.75" in text
    assert ET.fromstring(text).tag.endswith("svg")


def test_lines_go_up_with_what_they_take_and_names_stay_apart() -> None:
    lines = [Line("a", [(1e4, 1e-3), (1e6, 1e-1)]), Line("b < c", [(1e4, 1e-3), (1e6, 0.99e-1)])]
    text = lines_by_size(lines, "A picture", "nodes", "seconds")
    first, last = re.findall(r'<polyline[^>]*points="([\d.]+),([\d.]+) ([\d.]+),([\d.]+)"', text)
    assert float(first[0]) < float(first[2])
    assert float(first[3]) < float(first[1]) == float(last[1])
    named = [float(each) for each in re.findall(r'<text class="name[^>]* y="([\d.]+)"', text)]
    assert named[1] - named[0] >= 15
    assert "b &lt; c" in text
