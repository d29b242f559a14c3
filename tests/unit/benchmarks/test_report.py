"""The report says what the results say, names what is missing, and loads nothing."""

import ast
import html
import math
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.baselines.catalogue import METHODS
from benchmarks.paper.experiments import EXCLUDED
from benchmarks.paper.inference.lira import NEVER_THERE_QUESTION
from benchmarks.paper.units import DIED, OUT_OF_TIME
from benchmarks.report.claims.every import CLAIMS
from benchmarks.report.claims.judging import Verdict, found
from benchmarks.report.first_page import lines
from benchmarks.report.page import page
from benchmarks.report.paper_parts import PARTS, index, named
from benchmarks.report.paper_tables import TABLES, UNREACHABLE
from benchmarks.report.pictures.svg import Point, distance_against_time
from benchmarks.report.results import LETHE, REPAIRED, RETRAINED, Results, apart, number, percent, spread
from benchmarks.report.stream import stream_table
from benchmarks.reproduce import RESULTS
from tests.support.results import judged, measured, unit

ERASER = "graph eraser, linear, metis, mean"
PRINTED = "projector, option 1 as printed"


def injected(method: str, after: float | None, accuracy: float, seconds: float, **fields: Any) -> dict[str, Any]:
    figures = {
        "channel_norm_before": None if after is None else 20.0,
        "channel_norm_after": after,
        "accuracy_before": 0.85,
        "accuracy_after": accuracy,
        "seconds": seconds,
        "times_lethe": seconds,
    }
    return unit("injection", method, {"0.05": figures}, **fields)


def near(method: str, away: float, farther: float = 3.0) -> dict[str, Any]:
    figures = {"weights": away, "deleted": away, "remaining": away, "test": away, "seconds": 1.0, "times_lethe": 1.0}
    return unit("closeness", method, {"0.01": figures, "0.05": {**figures, "weights": farther * away}})


def streamed(seconds: float = 1.0, after: float = 0.8) -> dict[str, Any]:
    figures = {"removals": 200, "seconds": seconds, "seconds_of_one_retraining": 1.0, "retrainings": 0}
    figures |= {"accuracy_after": after, "accuracy_retrained": 0.8, "accuracy_anew": 0.7}
    return unit("stream", "certified removal", {"nodes": figures})


def at_lambdas(method: str, *after: tuple[str, float, float]) -> dict[str, Any]:
    cases = {each: {"validation_before": v, "validation_after": v, "accuracy_after": a} for each, v, a in after}
    return unit("regularization", method, {"1e-06": {}, **cases})


#: (claim, results in which it holds, the same with figures in which it does not)
FLIPS = [
    (
        "The projection takes the injected channel away",
        [injected(LETHE, 1e-14, 0.87, 0.5), injected(PRINTED, 0.0, 0.87, 6.0)],
        [injected(LETHE, 1e-14, 0.87, 0.5), injected(PRINTED, 0.1, 0.87, 6.0)],
    ),
    ("GraphEraser takes it away as well", [injected(ERASER, 0.0, 0.7, 9.0)], [injected(ERASER, 2.0, 0.7, 9.0)]),
    (
        "Influence+ and Fisher+ leave some of it",
        [injected("fisher+", 0.2, 0.8, 9.0)],
        [injected("fisher+", 1e-9, 0.8, 9.0)],
    ),
    (
        "The projection takes less time than every baseline",
        [injected(LETHE, 0.0, 0.8, 0.5), injected(RETRAINED, 0.0, 0.8, 0.6)],
        [injected(LETHE, 0.0, 0.8, 0.5), injected(RETRAINED, 0.0, 0.8, 0.4)],
    ),
    (
        "GraphEraser costs accuracy",
        [injected(ERASER, 0.0, 0.82, 0.5), injected(RETRAINED, 0.0, 0.84, 0.6)],
        [injected(ERASER, 0.0, 0.835, 0.5), injected(RETRAINED, 0.0, 0.84, 0.6)],
    ),
    (
        "The projection is slightly better than retraining",
        [injected(LETHE, 0.0, 0.85, 0.5), injected(RETRAINED, 0.0, 0.84, 0.6)],
        [injected(LETHE, 0.0, 0.84, 0.5), injected(RETRAINED, 0.0, 0.84, 0.6)],
    ),
    (
        "Options 1 and 2 of Algorithm 1 are the same",
        [near(PRINTED, 0.2), near("projector, option 2 as printed", 0.2)],
        [near(PRINTED, 0.2), near("projector, option 2 as printed", 4.0)],
    ),
    (
        "The projection’s weights are closest to retraining",
        [near(LETHE, 0.1), near("influence+", 0.2)],
        [near(LETHE, 0.1), near("influence+", 0.05)],
    ),
    (
        "At a small lambda they predict nothing meaningful",
        [at_lambdas("fisher+", ("1e-06", 0.4, 0.4)), at_lambdas(RETRAINED, ("1e-06", 0.8, 0.82))],
        [at_lambdas("fisher+", ("1e-06", 0.4, 0.8)), at_lambdas(RETRAINED, ("1e-06", 0.8, 0.82))],
    ),
    (
        "They cost accuracy at the lambda that suits each",
        [at_lambdas("fisher+", ("0.01", 0.8, 0.79), ("0.1", 0.7, 0.86)), at_lambdas(RETRAINED, ("0.01", 0.9, 0.85))],
        [at_lambdas("fisher+", ("0.01", 0.8, 0.79), ("0.1", 0.9, 0.86)), at_lambdas(RETRAINED, ("0.01", 0.9, 0.85))],
    ),
    ("Fewer deletions end closer to retraining", [near(LETHE, 0.1)], [near(LETHE, 0.1, farther=0.9)]),
    (
        "Adaptive diffusion always helps",
        [unit("accuracy", name, {"all": {"accuracy": x}}) for name, x in (("linear", 0.8), ("+ diffusion", 0.81))],
        [unit("accuracy", name, {"all": {"accuracy": x}}) for name, x in (("linear", 0.8), ("+ diffusion", 0.79))],
    ),
    ("Certified removal keeps accuracy", [streamed(after=0.799)], [streamed(after=0.79)]),
    ("Certified removal is four times as fast", [streamed(seconds=10.0)], [streamed(seconds=99.0)]),
]


@pytest.mark.parametrize(("name", "holding", "failing"), FLIPS, ids=[flip[0] for flip in FLIPS])
def test_a_verdict_is_what_the_figures_say(name: str, holding: list[Any], failing: list[Any]) -> None:
    assert measured(name).verdict is Verdict.UNMEASURED
    assert measured(name, *holding).verdict is Verdict.REPRODUCED
    assert measured(name, *failing).verdict is Verdict.REFUTED
    # One case in which it fails is enough, and is the one that is told.
    others = [{**record, "dataset": "pubmed"} for record in holding]
    both = measured(name, *others, *failing)
    assert both.verdict is Verdict.REFUTED
    assert "Pubmed" not in both.words.partition(" It holds in the others")[0]


def test_methods_are_compared_on_the_seeds_that_both_have() -> None:
    name = "The projection is slightly better than retraining"
    records = [injected(LETHE, 0.0, 0.85, 0.5), injected(RETRAINED, 0.0, 0.84, 0.5)]
    assert judged(name, *records, injected(LETHE, 0.0, 0.5, 0.5, seed=1)).verdict is Verdict.REPRODUCED
    both = [injected(LETHE, 0.0, 0.5, 0.5, seed=1), injected(RETRAINED, 0.0, 0.84, 0.5, seed=1)]
    assert judged(name, *records, *both).verdict is Verdict.REFUTED
    assert judged(name, *records[:1], *both[1:]).verdict is Verdict.UNMEASURED


def test_a_case_tells_by_how_many_seeds_it_is_and_their_means() -> None:
    ours = [injected(LETHE, 0.0, each, 0.5, seed=seed) for seed, each in enumerate((0.8, 0.9, 0.1))]
    theirs = [injected(RETRAINED, 0.0, each, 0.5, seed=seed) for seed, each in enumerate((0.8, 0.86))]
    words = judged("The projection is slightly better than retraining", *ours, *theirs).words
    assert f"2 seeds: {LETHE} 85 %, {RETRAINED} 83 %." in words
    away = [{**near(LETHE, each), "seed": seed} for seed, each in enumerate((0.1, 0.3))]
    assert "Cora, 1%, 2 seeds: 0.2, and 0.6 at 5%." in judged("Fewer deletions end closer to retraining", *away).words


def test_a_cell_of_a_unit_that_did_not_end_says_how_it_ended() -> None:
    late, died = (injected(LETHE, 0.0, 0.8, 1.0, outcome=each) for each in (OUT_OF_TIME, DIED))
    assert [Results([each]).absent("injection", "cora", LETHE) for each in (late, died)] == [OUT_OF_TIME, DIED]
    assert Results([]).absent("injection", "cora", LETHE) == "not measured yet"
    assert Results([]).absent("injection", "ogbn_arxiv_llm", "gcn") == "not planned"


def test_claims_on_data_that_cannot_be_reached_say_so_whatever_was_measured() -> None:
    assert judged("Accuracies on ogbn-arxiv", injected(LETHE, 0.0, 0.8, 1.0)).verdict is Verdict.UNREACHABLE


def test_each_claim_that_the_results_refute_names_a_test_with_its_smallest_example() -> None:
    results = Results.of(RESULTS)
    refuted = {each.name for each in CLAIMS if found(each, results).verdict is Verdict.REFUTED}
    assert refuted
    assert refuted >= {each.name for each in CLAIMS if each.general}
    assert not refuted - {each.name for each in CLAIMS if each.example}
    for example in {each.example for each in CLAIMS if each.example}:
        file, _, test = example.partition("::")
        tree = ast.parse((Path(__file__).parent / file).read_text())
        assert test.startswith("test_")
        assert test in {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}, example


@pytest.mark.parametrize(
    ("again", "case", "figure"),
    [("robustness", "0.01", "accuracy_before"), ("degrees", "dense nodes", "accuracy_before")],
)
def test_what_two_experiments_measure_is_the_same(again: str, case: str, figure: str) -> None:
    """An accuracy of before, of the same network, seed and graph: else one of the two is of older code.

    Up to a point: a network's training makes much of how another processor rounds.
    """
    results = Results.of(RESULTS)
    compared = 0
    for dataset in results.datasets(again):
        for method in results.methods(again, dataset):
            once = results.by_seed("accuracy", dataset, method, "all", "accuracy")
            twice = results.by_seed(again, dataset, method, case, figure)
            shared = once.keys() & twice.keys()
            assert all(once[seed] == pytest.approx(twice[seed], abs=0.01) for seed in shared), (dataset, method)
            compared += len(shared)
    assert compared > 20


def test_the_smallest_example_is_shown_beside_a_refuted_claim_alone() -> None:
    (name, holding, failing) = next(flip for flip in FLIPS if flip[0] == "Adaptive diffusion always helps")
    (example,) = (each.example for each in CLAIMS if each.name == name)
    assert example not in page(Results(holding))
    assert f"Smallest example: <code>{example}</code>" in page(Results(failing))


def test_methods_are_named_as_the_catalogue_does() -> None:
    for name in (LETHE, REPAIRED, RETRAINED, PRINTED, ERASER, "influence+, authors' code", "fisher+"):
        assert name in METHODS


def test_the_page_is_one_file_that_loads_nothing_and_names_what_is_missing() -> None:
    late = injected("scalegun", 1.0, 0.8, 1.0, outcome=OUT_OF_TIME, seed=1)
    records = [
        injected(LETHE, 1e-14, 0.871, 0.5),
        injected("gcn", None, 0.8, 9.0),
        near(LETHE, 0.1),
        near(REPAIRED, 1e-11),
    ]
    cases = {"single": {"draws": 2708, "unchanged": 2704}, "0.01": {"draws": 10, "unchanged": 9}}
    text = page(Results([*records, late, unit("identity", LETHE, cases)]))
    assert not re.findall(r"\bsrc\s*=|\bhref\s*=\s*[^\s\"]|\bhref\s*=\s*\"[^#]|url\(|@import|<script|<link", text)
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text
    assert "Cora 99.85%" in text
    assert "9 of 10" in text
    assert "Cora 0.1 and 1.0e-11" in text
    assert "injection, Cora, scalegun, seed 1: out of time; measured until then: 0.05" in text
    assert re.search(r"injection, Cora\s*<br>0 of 1: .*\s*<br>0 of 5: .*retraining", text)
    assert re.search(r"identity, Cora\s*<br>1 of 5: lethe, projection\s", text)
    assert "closeness, Amazon Photo" in text
    assert "<td>not measured yet</td>" in text
    # Networks' erasers on the arXiv graph.
    assert "<td>not planned</td>" in text
    assert text.count(UNREACHABLE) > 50
    assert "<svg" in text
    assert "no reproduction" in text


def test_the_first_page_says_in_ten_sentences_what_the_figures_say() -> None:
    def told(before: float, after: float) -> tuple[Verdict | None, str]:
        results = Results(
            [unit("injection", LETHE, {"0.05": {"channel_norm_before": before, "channel_norm_after": after}})]
        )
        made = lines([found(claim, results) for claim in CLAIMS], results)
        assert len(made) == 10
        assert made[2].verdict is Verdict.REFUTED
        return made[0].verdict, made[0].sentence

    verdict, sentence = told(20.0, 1e-14)
    assert verdict is Verdict.REPRODUCED
    assert "is passed" in sentence
    verdict, sentence = told(20.0, 2.0)
    assert verdict is Verdict.REFUTED
    assert "is not passed" in sentence
    nothing = lines([found(claim, Results([])) for claim in CLAIMS], Results([]))
    assert {each.figures for each in nothing} == {"Nothing was measured yet.", "It was not measured yet."}


def test_the_first_page_gives_what_attackers_tell_and_names_the_methods_that_are_missing() -> None:
    attacked = unit("lira", LETHE, {f"ovr, {NEVER_THERE_QUESTION}": {"auc": 0.911}})
    text = " ".join(each.figures for each in lines([found(each, Results([])) for each in CLAIMS], Results([attacked])))
    assert f"Cora: 91.1 % with {LETHE}, not measured yet with {REPAIRED} and {RETRAINED}." in text


def test_each_part_of_the_paper_has_claims_or_words_and_each_claim_a_part() -> None:
    findings = [found(claim, Results([])) for claim in CLAIMS]
    assert all(words for *_, words in index(findings).rows)
    assert named("Tables 1, 2 and 6") == {"Table 1", "Table 2", "Table 6"}
    assert named("Figure 3, columns 1 to 3") == {"Figure 3"}
    assert named("Figure 1 and Appendix on dependency") == {"Figure 1", "Appendix on dependency"}
    assert {claim.where for claim in CLAIMS if not named(claim.where)} == {"Chien et al. 2023, abstract"}
    assert set().union(*(named(claim.where) for claim in CLAIMS)) <= {part for part, _, _ in PARTS}


def test_every_heading_is_in_the_contents_once() -> None:
    text = page(Results([]))
    anchors = re.findall(r'<h2 id="([^"]*)">', text)
    assert len(anchors) == len(set(anchors)) > 20
    links = re.findall(r'<a href="#([^"]*)">', text)
    assert re.findall(r'<a href="#([^"]*)">', text[text.index("<nav>") : text.index("</nav>")]) == anchors
    assert set(links) == set(anchors)


def test_a_claim_that_fails_in_some_cases_says_where_it_holds() -> None:
    accuracies = {"0.05": (0.44, 0.87), "0.1": (0.849, 0.845)}
    results = Results(
        [
            unit("injection", method, {share: {"accuracy_after": each[place]} for share, each in accuracies.items()})
            for place, method in enumerate((ERASER, RETRAINED))
        ]
    )
    (claim,) = (each for each in CLAIMS if each.name == "GraphEraser costs accuracy")
    words = found(claim, results).words
    assert words.startswith("It fails in 1 of 2 cases. Worst: Cora, 10%")
    assert "It holds in the others, most clearly: Cora, 5%" in words


def test_the_page_of_nothing_names_everything_as_missing() -> None:
    text = page(Results([]))
    assert "Nothing was measured yet." in text
    assert "0 of 5" in text
    assert f"{Verdict.REPRODUCED.value} 0" not in text
    assert "0 reproduced" in text


def test_what_is_not_planned_is_named_with_its_reason() -> None:
    text = html.unescape(page(Results([])))
    assert EXCLUDED
    for what, why in EXCLUDED:
        assert f"<td>{what}</td><td>{why}</td>" in text


def test_methods_with_a_lambda_of_their_own_say_so_in_every_row() -> None:
    records = [make(name) for name in ("scalegun", "fisher+") for make in (_injected, _near)]
    text = page(Results(records))
    assert re.findall(r"<td>(?:\d+\. )?((?:scalegun|fisher\+)[^<]*)</td><td>[15]%", text) == [
        "fisher+",
        "scalegun (lambda 1e-2)",
        "fisher+",
        "fisher+",
        "scalegun (lambda 1e-2)",
        "scalegun (lambda 1e-2)",
    ]
    # At another lambda a distance does not compare, so that there is no point of it.
    assert re.findall(r"<title>((?:scalegun|fisher)[^<]*)</title>", text) == ["fisher+"]
    assert "1e-4 for all" not in text


def _injected(method: str) -> dict[str, Any]:
    return injected(method, 0.1, 0.8, 1.0)


def _near(method: str) -> dict[str, Any]:
    return near(method, 0.1)


def test_ours_beside_ogbn_arxiv_are_said_to_be_of_other_features_in_every_row() -> None:
    named = {row.dataset for table in TABLES for row in table.rows if "arxiv" in row.dataset}
    assert named == {"ogbn-arxiv; ours: other features"}
    arxiv = {**injected("projector, official code", 0.0, 0.7159, 3.0), "dataset": "ogbn_arxiv_llm"}
    assert re.search(r"<td>ogbn-arxiv; ours: other features</td>.*85.00 → 71.59", page(Results([arxiv])))


def test_a_stream_of_edges_or_features_stands_beside_the_nodes_and_what_is_published() -> None:
    figures = {"accuracy_after": 0.82, "accuracy_retrained": 0.83, "seconds": 10.0, "seconds_of_one_retraining": 0.5}
    figures |= {"budget_spent": 0.125, "budget": 0.25}
    cases = {"nodes": {**figures, "removals": 200}, "edges": {**figures, "removals": 150}}
    made = stream_table(Results([unit("stream", "certified removal", cases)]))
    assert list(made.head) == ["", "Cora, 200 nodes", "Cora, 150 edges", "published: Cora, 200 nodes"]
    rows = {name: cells for name, *cells in made.rows}
    assert rows["spent"] == ["0.125", "0.125", "–"]
    assert rows["budget"] == ["0.25", "0.25", "–"]
    assert rows["lost to retraining without noise, points"] == ["1.00", "1.00", "0.1"]
    assert rows["times as fast as retraining after each"] == ["10", "7.5", "4"]
    assert not stream_table(Results([])).rows


def test_every_row_of_the_papers_tables_has_as_many_cells_as_columns() -> None:
    for table in TABLES:
        assert {len(row.cells) for row in table.rows} == {len(table.columns)}


def test_the_picture_puts_faster_left_and_closer_below_and_rounding_on_one_line() -> None:
    points = [
        Point(1, "a", "lethe", 1.0, 1e-3),
        Point(2, "b", "newton", 100.0, 1e-1),
        Point(3, "c < d", "eraser", 10.0, 0.0),
    ]
    text = distance_against_time([*points, Point(4, "e", "lethe", 10.0, 1e-15)], "A picture")
    circles = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)" r="(\d)"', text)
    places, spots = ([(float(x), float(y)) for x, y, r in circles if r == size] for size in "39")
    assert places[0][0] < places[2][0] < places[1][0]
    assert places[1][1] < places[0][1] < places[2][1]
    assert places[2] == places[3]
    assert spots[:3] == places[:3]
    # Numbers of points in one place stand side by side.
    assert math.dist(spots[2], spots[3]) == pytest.approx(18, abs=0.1)
    assert "c &lt; d" in text
    assert not distance_against_time([], "nothing")


def test_figures_are_written_as_long_as_they_say_something() -> None:
    assert [number(each) for each in (None, 0.0, 1.23456, 999.7, 2.3e-14, 12345.0, 2e5)] == [
        "–",
        "0",
        "1.23",
        "1,000",
        "2.3e-14",
        "12,345",
        "2.0e+05",
    ]
    assert spread([1.0, 3.0]) == "2 ± 1.41 (2)"
    assert spread([1.0, 3.0, 1.0, 3.0, 2.0]) == "2 ± 1"
    assert apart((87.71, 87.68), " %") == ["87.71 %", "87.68 %"]
    assert apart((87.7, 87.7)) == ["87.7", "87.7"]
    assert percent([0.871]) == "87.1"
    assert percent([]) == spread([]) == "–"
