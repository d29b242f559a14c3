"""The report agrees with the results, names what is missing, and loads nothing."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.baselines.catalogue import METHODS
from benchmarks.paper.units import OUT_OF_TIME
from benchmarks.report.claims.every import CLAIMS
from benchmarks.report.claims.verdicts import Verdict, found
from benchmarks.report.page import page
from benchmarks.report.paper_parts import PARTS, index, named
from benchmarks.report.paper_tables import UNREACHABLE
from benchmarks.report.results import LETHE, REPAIRED, RETRAINED, Results
from benchmarks.reproduce import RESULTS
from tests.support.results import measured, unit

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


#: (claim, results that support it, the same with figures that do not)
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
    # One failing case is enough, and is the one reported.
    others = [{**record, "dataset": "pubmed"} for record in holding]
    both = measured(name, *others, *failing)
    assert both.verdict is Verdict.REFUTED
    assert "Pubmed" not in both.words.partition(" It holds in the others")[0]


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
    assert "do not reproduce" in text


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
    assert f"{Verdict.REPRODUCED.value} 0" not in text
    assert "0 reproduced" in text
