"""The report agrees with the results, names what is missing, and loads nothing."""

import ast
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.baselines.catalogue import METHODS
from benchmarks.paper.forgetting import early, two_losses
from benchmarks.paper.inference.lira import NEVER_THERE_QUESTION
from benchmarks.paper.units import OUT_OF_TIME
from benchmarks.report.claims.every import CLAIMS
from benchmarks.report.claims.judging import EARLY, EARLY_CLOSE, EARLY_INJECTED, half_interval, over_seeds
from benchmarks.report.claims.verdicts import Case, Claim, Outcome, Source, Verdict, found
from benchmarks.report.headline import headline, slower
from benchmarks.report.page import page
from benchmarks.report.paper_parts import PARTS, index, named
from benchmarks.report.paper_tables import UNREACHABLE
from benchmarks.report.results import LETHE, REPAIRED, RETRAINED, Results, spread
from benchmarks.report.tables import accuracy
from benchmarks.reproduce import RESULTS
from tests.support.results import measured, unit

pytestmark = pytest.mark.ci

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
    figures |= {"seconds_of_one_retraining_as_theirs": 1.5}
    return unit("stream", "certified removal", {"nodes": figures})


def deleted_at_once(method: str, away: float, seconds: float) -> dict[str, Any]:
    figures = {"weights": away, "accuracy_after": 0.8, "seconds": seconds, "times_lethe": seconds, "peak_mib": 12.0}
    return unit("batches", method, dict.fromkeys(("1", "64"), figures))


def at_lambdas(method: str, *after: tuple[str, float, float]) -> dict[str, Any]:
    cases = {each: {"validation_before": v, "validation_after": v, "accuracy_after": a} for each, v, a in after}
    return unit("regularization", method, {"1e-06": {}, **cases})


#: (claim, results in which it holds, the same with figures in which no case holds)
FLIPS = [
    (
        "Projector and GraphEraser set the injected channel to zero",
        [injected(LETHE, 1e-14, 0.87, 0.5), injected(PRINTED, 0.0, 0.87, 6.0)],
        [injected(LETHE, 0.1, 0.87, 0.5), injected(PRINTED, 0.1, 0.87, 6.0)],
    ),
    (
        "Influence+ and Fisher+ keep some of it because they approximate",
        [injected("fisher+", 0.2, 0.8, 9.0)],
        [injected("fisher+", 1e-9, 0.8, 9.0)],
    ),
    (
        "Projector takes less time than every baseline",
        [injected(LETHE, 0.0, 0.8, 0.5), injected(RETRAINED, 0.0, 0.8, 0.6)],
        [injected(LETHE, 0.0, 0.8, 0.5), injected(RETRAINED, 0.0, 0.8, 0.4)],
    ),
    (
        "GraphEraser, Influence+ and Fisher+ cost accuracy",
        [injected(ERASER, 0.0, 0.82, 0.5), injected("fisher+", 0.0, 0.82, 0.5), injected(RETRAINED, 0.0, 0.84, 0.6)],
        [injected(ERASER, 0.0, 0.835, 0.5), injected("fisher+", 0.0, 0.835, 0.5), injected(RETRAINED, 0.0, 0.84, 0.6)],
    ),
    (
        "Projector is slightly better than retraining",
        [injected(LETHE, 0.0, 0.85, 0.5), injected(RETRAINED, 0.0, 0.84, 0.6)],
        [injected(LETHE, 0.0, 0.84, 0.5), injected(RETRAINED, 0.0, 0.84, 0.6)],
    ),
    (
        "Options 1 and 2 of Algorithm 1 are the same",
        [near(PRINTED, 0.2), near("projector, option 2 as printed", 0.2)],
        [near(PRINTED, 0.2), near("projector, option 2 as printed", 4.0)],
    ),
    (
        "Projector is closer to retraining than the baselines",
        [near(LETHE, 0.1), near("influence+", 0.2)],
        [near(LETHE, 0.1), near("influence+", 0.05)],
    ),
    (
        "At a small lambda they predict nothing meaningful",
        [at_lambdas("fisher+", ("1e-06", 0.4, 0.4)), at_lambdas(RETRAINED, ("1e-06", 0.8, 0.82))],
        [at_lambdas("fisher+", ("1e-06", 0.4, 0.8)), at_lambdas(RETRAINED, ("1e-06", 0.8, 0.82))],
    ),
    (
        "GraphEraser, Influence+ and Fisher+ cost accuracy",
        [at_lambdas("fisher+", ("0.01", 0.8, 0.79), ("0.1", 0.7, 0.86)), at_lambdas(RETRAINED, ("0.01", 0.9, 0.85))],
        [at_lambdas("fisher+", ("0.01", 0.8, 0.79), ("0.1", 0.9, 0.86)), at_lambdas(RETRAINED, ("0.01", 0.9, 0.85))],
    ),
    ("Fewer deletions end closer to retraining", [near(LETHE, 0.1)], [near(LETHE, 0.1, farther=0.9)]),
    (
        "Adaptive diffusion helps consistently",
        [unit("accuracy", name, {"all": {"accuracy": x}}) for name, x in (("linear", 0.8), ("+ diffusion", 0.81))],
        [unit("accuracy", name, {"all": {"accuracy": x}}) for name, x in (("linear", 0.8), ("+ diffusion", 0.79))],
    ),
    ("Certified removal keeps accuracy", [streamed(after=0.799)], [streamed(after=0.79)]),
    ("Certified removal is four times as fast", [streamed(seconds=10.0)], [streamed(seconds=99.0)]),
]


@pytest.mark.parametrize(
    ("name", "holding", "failing"), FLIPS, ids=[f"{flip[0]}, {flip[1][0]['experiment']}" for flip in FLIPS]
)
def test_a_verdict_is_what_the_figures_say(name: str, holding: list[Any], failing: list[Any]) -> None:
    assert measured(name).verdict is Verdict.UNMEASURED
    assert measured(name, *holding).verdict is Verdict.REPRODUCED
    (claim,) = (each for each in CLAIMS if each.name == name)
    nowhere = Verdict.NOT_REPRODUCED if claim.setting else Verdict.REFUTED
    assert measured(name, *failing).verdict is nowhere
    if claim.source is Source.PAPER:  # the others are of Cora alone
        # One failing case among others does not refute.
        others = [{**record, "dataset": "pubmed"} for record in holding]
        assert measured(name, *others, *failing).verdict is Verdict.IN_PART


def case(margin: float, group: str = "Cora", doubt: float = 0.0) -> Case:
    return Case(margin, f"{group}: {margin}.", group, doubt)


def claim(*cases: Case, **fields: Any) -> Claim:
    return Claim("It is so", "Table 1", "It is so.", lambda results: list(cases), "", **fields)


#: (cases, fields of the claim, verdict)
RULES: dict[str, tuple[tuple[Case, ...], dict[str, Any], Verdict]] = {
    "every case holds": ((case(1), case(2)), {}, Verdict.REPRODUCED),
    "most hold and none contradicts": ((case(1), case(2), case(0)), {}, Verdict.REPRODUCED),
    "half are undecided": ((case(1), case(0)), {}, Verdict.IN_PART),
    "one contradicts": ((case(1), case(2), case(-1)), {}, Verdict.IN_PART),
    "every case contradicts": ((case(-1), case(-2)), {}, Verdict.REFUTED),
    "every case contradicts in another setting": ((case(-1),), {"setting": "Another one."}, Verdict.NOT_REPRODUCED),
    "a tie": ((case(0),), {}, Verdict.NOT_REPRODUCED),
    "none holds and a tie": ((case(-1), case(0)), {}, Verdict.NOT_REPRODUCED),
    "within the interval": ((case(-1, doubt=2),), {}, Verdict.NOT_REPRODUCED),
    "beyond the interval": ((case(-3, doubt=2),), {}, Verdict.REFUTED),
    "a counterexample to what is printed": ((case(1),), {"general": True}, Verdict.REFUTED),
    "a test shows it": ((), {"shown": "a_test.py::test_a"}, Verdict.REPRODUCED),
    "a test shows it and a case contradicts": ((case(-1),), {"shown": "a_test.py::test_a"}, Verdict.REFUTED),
    "it could be so, and one contradicts": ((case(1), case(2), case(-1)), {"possible": True}, Verdict.REPRODUCED),
    "it could be so, and half contradict": ((case(1), case(-1)), {"possible": True}, Verdict.IN_PART),
    "it could be so, and every case contradicts": ((case(-1),), {"possible": True}, Verdict.REFUTED),
    "nothing measured": ((), {}, Verdict.UNMEASURED),
}


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_gives_its_verdict(rule: str) -> None:
    cases, fields, verdict = RULES[rule]
    assert found(claim(*cases, **fields), Results([])).verdict is verdict


def test_a_claim_whose_data_cannot_be_reached_is_not_testable() -> None:
    unreachable = replace(claim(), judge=None)
    assert found(unreachable, Results([])).verdict is Verdict.UNREACHABLE


def test_a_claim_that_holds_in_part_names_where() -> None:
    words = found(claim(case(3), case(-2), case(1, "Pubmed"), case(0, "Pubmed")), Results([])).words
    assert words == (
        "It holds in 2 of 4 cases; 1 contradicts it and 1 is undecided. By group: Cora: 1 of 2; Pubmed: 1 of 2. "
        "Strongest case against it: Cora: -2. Strongest case for it: Cora: 3."
    )


def test_the_strongest_case_against_a_claim_is_one_that_contradicts_it() -> None:
    undecided = Case(-5, "Citeseer: -5.", "Citeseer", doubt=9)
    words = found(claim(case(3), case(-2), undecided), Results([])).words
    assert "Strongest case against it: Cora: -2. Strongest case for it: Cora: 3." in words


def test_the_interval_over_seeds_is_students() -> None:
    # 12.706 is Student's 97.5 % quantile for one degree of freedom.
    assert half_interval([1.0, 3.0]) == pytest.approx(12.706 * 2**0.5 / 2**0.5, rel=1e-4)
    assert half_interval([5.0]) == 0.0
    even = over_seeds(lambda ours, theirs: ours - theirs, [(2.0, 1.0), (2.0, 1.0)], "", "Cora")
    assert (even.margin, even.doubt, even.outcome) == (1.0, 0.0, Outcome.HOLDS)
    uneven = over_seeds(lambda ours, theirs: ours - theirs, [(2.0, 1.0), (1.5, 1.0)], "", "Cora")
    assert (uneven.margin, uneven.outcome) == (0.75, Outcome.UNDECIDED)


def test_seeds_that_differ_too_much_leave_a_case_undecided() -> None:
    name = "Projector is slightly better than retraining"
    pairs = [(0.85, 0.84), (0.86, 0.84), (0.84, 0.85)]
    records = [
        injected(method, 0.0, accuracy, 0.5, seed=seed)
        for seed, pair in enumerate(pairs)
        for method, accuracy in zip((LETHE, RETRAINED), pair, strict=True)
    ]
    assert "undecided" in measured(name, *records).words
    assert measured(name, *records[:4]).verdict is Verdict.NOT_REPRODUCED
    steady = [{**record, "seed": seed} for seed in range(3) for record in records[:2]]
    assert measured(name, *steady).verdict is Verdict.REPRODUCED


def test_each_claim_that_is_refuted_names_its_smallest_example_and_each_shown_one_its_test() -> None:
    results = Results.of(RESULTS)
    refuted = {each.name for each in CLAIMS if found(each, results).verdict is Verdict.REFUTED}
    assert refuted
    assert refuted >= {each.name for each in CLAIMS if each.general}
    assert not refuted - {each.name for each in CLAIMS if each.example}
    here = Path(__file__).parent
    named = {here / each.example for each in CLAIMS if each.example}
    named |= {here.parent / each.shown for each in CLAIMS if each.shown}
    named |= {here / each for claim in CLAIMS for each in re.findall(r"test_\w+\.py::test_\w+", claim.because)}
    for place in named:
        file, _, test = str(place).partition("::")
        tree = ast.parse(Path(file).read_text())
        assert test.startswith("test_")
        assert test in {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}, place


def test_names_are_unique_and_what_the_paper_does_not_claim_stands_apart() -> None:
    assert len({each.name for each in CLAIMS}) == len(CLAIMS)
    assert all(each.source is Source.CERTIFIED for each in CLAIMS if "Chien" in each.where)
    assert all(each.general for each in CLAIMS if each.source is Source.MISPRINTS)
    assert {each.source for each in CLAIMS} == set(Source)


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
    assert re.search(r"identity, Cora\s*<br>0 of 1: .*\s*<br>1 of 5: lethe, projection\s", text)
    assert "closeness, Amazon Photo" in text
    assert "<td>not measured yet</td>" in text
    assert text.count(UNREACHABLE) > 50
    assert "<svg" in text
    assert "do not reproduce" in text


def test_a_method_without_figures_says_why() -> None:
    results = Results([])
    assert results.absent("accuracy", "cora", "gcn") == "not measured yet"
    assert results.absent("accuracy", "cora", "graph eraser, gcn, metis, mean") == "not planned"


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([], "–"),
        ([20.8123], "20.8"),
        ([20.8, 20.5, 21.1, 20.8, 20.8], "20.8 ± 0.2"),
        ([13.0, 13.0], "13.0 ± 0 (2)"),
        ([0.5, 0.5000001], "0.500 ± 7e-08 (2)"),
        ([99.96, 99.98], "100 ± 0.01 (2)"),
        ([-20.85, -20.0], "-20.4 ± 0.6 (2)"),
        ([12345.0, 12400.0], "12,372 ± 39 (2)"),
        ([123450.0, 124000.0], "1.2e+05 ± 389 (2)"),
        ([1e-14, 2e-14], "1.5e-14 ± 7.1e-15 (2)"),
    ],
)
def test_a_deviation_has_the_decimals_of_its_mean_but_beside_a_power_of_ten(values: list[float], text: str) -> None:
    assert spread(values) == text


def test_the_headline_compares_exact_methods_with_the_closest_approximate_one_and_says_where_lethe_is_slower() -> None:
    records = [
        deleted_at_once(REPAIRED, 1e-10, 0.5),
        deleted_at_once("graph editor", 1e-12, 0.4),
        deleted_at_once(RETRAINED, 0.0, 0.6),
        deleted_at_once("fisher+, without noise", 0.3, 0.1),
        deleted_at_once("influence+", 0.2, 0.1),
        deleted_at_once("deltagrad", 0.001, 0.1),  # to a descent that ends far from the optimum
        unit("lira", REPAIRED, {f"ovr, {NEVER_THERE_QUESTION}": {"auc": 0.501}}),
    ]
    results = Results(records)
    rows = {row[0]: row for row in headline(results).rows}
    assert list(rows) == [REPAIRED, RETRAINED, "graph editor", "influence+ (closest approximate method)"]
    assert rows[REPAIRED][1:] == ["Cora", "yes", "1.0e-10", "80.0", "0.5", "0.5", "12", "50.1", "1"]
    assert rows["influence+ (closest approximate method)"][2] == "no"
    assert rows["graph editor"][8] == "not measured"
    assert "Cora, one node: Lethe takes 0.5 s; graph editor takes 0.4 s." in slower(results)
    assert len(slower(results)) == 2
    text = page(results)
    assert "Not measured yet on Cora (closed-form sgc, projector, option 1 as printed); Citeseer; Pubmed" in text
    assert "influence+ (closest approximate method)" in text


def stopped_early(method: str, away: float, left: float = 0.0, after: float = 0.87, **fields: Any) -> dict[str, Any]:
    trained = {"iterations": 149, "rate": 1.0, "objective": 0.416, "objective_at_zero": 4.852}
    figures = {"weights": away, "deleted": away, "remaining": away, "test": away, **trained}
    figures |= {"accuracy_before": 0.88, "accuracy_after": after}
    norms = {"channel_norm_before": 4.0, "channel_norm_after": 4.0 * left}
    return unit(EARLY, method, {EARLY_CLOSE[1]: figures, EARLY_INJECTED[0]: figures | norms}, **fields)


def test_tables_say_which_graphsaint_a_row_is() -> None:
    results = Results([unit("accuracy", "gcn, graphsaint", {"all": {"accuracy": 0.8}})])
    assert accuracy(results).rows[0][0] == "gcn, two layers, graphsaint's node sampler"


def test_the_report_names_the_losses_that_the_authors_figure_compares() -> None:
    pairs = {name: {"weights": 1.2345 + number} for number, name in enumerate(two_losses.PAIRS)}
    text = page(Results([unit("two-losses", two_losses.METHOD, pairs)]))
    assert '<a href="#why-the-authors-figure-3-has-its-baselines-near-2">' in text
    assert all(f"{1.23 + number:.2f}" in text for number in range(5))
    assert 'id="why-the-authors-figure-3-has-its-baselines-near-2"' in text
    assert "exp2_graph_newton.py" in text


def test_the_first_page_and_a_section_give_the_figures_of_the_papers_own_training() -> None:
    records = [
        stopped_early(early.LIVE, 0.06),
        *(
            stopped_early(early.at(early.INFLUENCE, each), away, 20.0)
            for each, away in (("1e-6", 13.4), ("1e-3", 0.03))
        ),
        *(stopped_early(early.at(early.FISHER, each), away, 1e-9) for each, away in (("1e-6", 8.1), ("1e-3", 0.2))),
    ]
    text = page(Results(records))
    # Where a Newton step is closer, at a larger lambda, the page says so.
    assert (
        "Their lambda 1e-6: closer than Influence+ in 1 of 1 cases, farther in 0; Influence+ leaves 20 times the"
        in text
    )
    assert "Their lambda 1e-3: closer than Influence+ in 0 of 1 cases, farther in 1; Influence+ leaves 20 times" in text
    assert "closer than Fisher+ in 1 of 1 cases, farther in 0; Fisher+ leaves nothing of the channel" in text
    assert "Their lambda 1e-4" not in text
    assert "<td>closeness, 1 %</td><td>0.06</td>" in text
    assert "<td>lambda 1e-6, no injection</td><td>149</td><td>1</td><td>0.416</td><td>4.85</td><td>88.0</td>" in text


#: (claim, a record of the paper's training beside those of the projection and retraining, whether it then holds)
TRAINED_AS_THE_PAPER = [
    ("Projector is closer to retraining than the baselines", stopped_early(early.at(early.FISHER, "1e-6"), 8.1), True),
    (
        "Projector is closer to retraining than the baselines",
        stopped_early(early.at(early.FISHER, "1e-2"), 0.01),
        False,
    ),
    (
        "Influence+ and Fisher+ keep some of it because they approximate",
        stopped_early(early.at(early.INFLUENCE, "1e-6"), 13.4, left=20.0),
        True,
    ),
    (
        "Influence+ and Fisher+ keep some of it because they approximate",
        stopped_early(early.at(early.FISHER, "1e-6"), 8.1, left=1e-9),
        False,
    ),
    (
        "At a small lambda they predict nothing meaningful",
        stopped_early(early.at(early.FISHER, "1e-6"), 8.1, after=0.74),
        True,
    ),
    (
        "At a small lambda they predict nothing meaningful",
        stopped_early(early.at(early.FISHER, "1e-6"), 8.1, after=0.8),
        False,
    ),
    (
        "GraphEraser, Influence+ and Fisher+ cost accuracy",
        stopped_early(early.at(early.FISHER, "1e-2"), 0.1, after=0.85),
        True,
    ),
]


@pytest.mark.parametrize(("name", "record", "holds"), TRAINED_AS_THE_PAPER)
def test_claims_are_judged_by_the_papers_own_training_and_name_it(name: str, record: Any, *, holds: bool) -> None:
    beside = [stopped_early(early.LIVE, 0.06), stopped_early(early.at(early.RETRAINING, "1e-6"), 0.0)]
    finding = measured(name, *beside, record)
    assert finding.verdict is (Verdict.REPRODUCED if holds else Verdict.NOT_REPRODUCED)
    assert "stopped early" in finding.claim.setting
    (claim,) = (each for each in CLAIMS if each.name == name)
    assert claim.judge is not None
    assert all(each.group.startswith("stopped early") for each in claim.judge(Results([*beside, record])))


def test_membership_is_judged_after_either_training() -> None:
    def split(experiment: str, method: str, deleted: float) -> dict[str, Any]:
        return unit(experiment, method, {"split 0": {"deleted_before": 0.4, "deleted_after": deleted}})

    name = "Projector hides a deletion from membership inference as well as retraining"
    stopped = [
        split("early-membership", method, 0.6) for method in (early.LIVE, early.at(early.RETRAINING, early.PAPERS))
    ]
    assert measured(name, *stopped).verdict is Verdict.REPRODUCED
    optimal = [split("membership", LETHE, 0.2), split("membership", RETRAINED, 0.6)]
    finding = measured(name, *stopped, *optimal)
    assert finding.verdict is Verdict.IN_PART
    assert "stopped early, Cora: 1 of 1; to the optimum, Cora: 0 of 1" in finding.words
    # A seed that only one of them has does not count.
    assert measured(name, *stopped, {**stopped[1], "seed": 1}).words == measured(name, *stopped).words


def test_each_part_of_the_paper_has_claims_or_words_and_each_claim_a_part() -> None:
    findings = [found(claim, Results([])) for claim in CLAIMS]
    assert all(words for *_, words in index(findings).rows)
    assert named("Tables 1, 2 and 6") == {"Table 1", "Table 2", "Table 6"}
    assert named("Figure 3, columns 1 to 3") == {"Figure 3"}
    assert named("Figure 1 and Appendix on dependency") == {"Figure 1", "Appendix on dependency"}
    assert {claim.where for claim in CLAIMS if not named(claim.where)} == {"Chien et al. 2023, abstract"}
    assert set().union(*(named(claim.where) for claim in CLAIMS)) <= {part for part, _, _ in PARTS}


def test_the_page_of_nothing_names_everything_as_missing() -> None:
    text = page(Results([]))
    assert "Nothing was measured yet." in text
    assert "0 of 5" in text
    shown = sum(bool(each.shown) for each in CLAIMS)
    assert f"{shown} reproduced" in text
