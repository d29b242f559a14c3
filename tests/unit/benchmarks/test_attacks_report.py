"""The report's part on attacks, and the experiments that it is of."""

from typing import Any

import pytest

from benchmarks.paper.experiments import EXPERIMENTS
from benchmarks.paper.inference.versions import AUDITED, PLANTED, SEEN, averaged, pairs, victim_of
from benchmarks.paper.setting import SOFTMAX, spec_of
from benchmarks.paper.units import Figures, Unit, graph_of
from benchmarks.report.page import page
from benchmarks.report.results import REPAIRED, RETRAINED, Results
from projector.network.spec import LossKind
from tests.support.results import unit

TINY = "synthetic:n=60,d=12,classes=3,seed=1"


def measured(experiment: str, method: str) -> dict[str, Any]:
    this = Unit(experiment, TINY, method, 0)
    return dict(EXPERIMENTS[experiment].measure(graph_of(this), this))


def test_what_a_method_is_attacked_with_is_the_same_for_all_and_the_audit_is_against_retraining() -> None:
    this = Unit("identification", TINY, PLANTED + SOFTMAX, 0)
    graph = graph_of(this)
    assert spec_of(TINY, this.method).loss is LossKind.SOFTMAX
    victim = victim_of(graph, this)
    anew = Unit("identification", TINY, RETRAINED + SOFTMAX, 0)
    assert victim_of(graph, anew) is victim
    for found, exact in zip(pairs(graph, this, victim.single), pairs(graph, anew, victim.single), strict=True):
        assert (found.name, found.nodes.tolist()) == (exact.name, exact.nodes.tolist())
        assert set(found.nodes) <= set(victim.known.candidates)
        (column,) = graph.labels[found.nodes]
        assert found.after.weights is not None
        if found.name == SEEN:
            assert found.before.weights is not None
            kept = (found.after.weights == found.before.weights).all(axis=0)
            assert kept.nonzero()[0].tolist() == [column]
            assert not found.after.answers[found.nodes].any()
        else:
            assert exact.before is exact.after
            assert (found.after.weights == exact.after.weights).all()


@pytest.mark.parametrize("experiment", ["identification", "reconstruction"])
def test_whom_training_anew_hides_is_found_by_chance(experiment: str) -> None:
    found = measured(experiment, RETRAINED)
    audited = found.pop(AUDITED, None) or found["single, after and retrained"]
    chance = audited.get("first_chance", audited.get("chance_first"))
    told = {name: value for name, value in audited.items() if name.endswith("_first") and name != "chance_first"}
    assert len(told) >= 8
    assert all(value == pytest.approx(chance) for value in told.values())


def test_means_are_over_deletions_and_ranks_have_their_median() -> None:
    made: list[Figures] = [
        {"a_rank": 1.0, "a_first": 1.0},
        {"a_rank": 2.0, "a_first": 0.0},
        {"a_rank": 9.0, "a_first": 0.5},
    ]
    assert averaged(made) == {"a_rank": 2.0, "a_first": 0.5}


def test_the_page_shows_what_attacks_found_beside_chance() -> None:
    told = ("exact", "3", "2", "1")
    who = {
        f"{attack}_{each}_{figure}": 0.4321
        for attack in ("filter", "neighbours")
        for each in told
        for figure in ("first", "rank")
    }
    who |= {"deletions": 30, "candidates": 604, "first_chance": 1 / 604, "middle_rank": 302.5}
    what = {"deletions": 30, "mean_cosine": 0.2004, "weights_cosine": 0.6311, "likelihood_2_first": 0.8761}
    which = {"chance": 0.5, "change_exact_kept": 0.9123, "trend_2_never": 0.5678}
    text = page(
        Results(
            [
                unit("edges", REPAIRED, {SEEN: which}),
                unit("identification", REPAIRED, {SEEN: who}),
                unit("reconstruction", REPAIRED, {"single, x": what}),
            ]
        )
    )
    for figure in ("43.2", "0.2", "302", "0.631", "87.6", "91.2", "56.8"):
        assert f"<td>{figure}</td>" in text
    assert f"<td>{REPAIRED}: {SEEN}</td>" in text
    assert "U-LiRA" in text
