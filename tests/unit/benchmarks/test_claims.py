"""What the claims' rules compare: which methods, which seeds, which shares."""

from typing import Any

import pytest

from benchmarks.paper.accuracies import DIFFUSED_MLP
from benchmarks.paper.inference.lira import NEVER_THERE_QUESTION
from benchmarks.paper.setting import ARXIV
from benchmarks.report.claims.judging import Verdict
from benchmarks.report.results import LETHE, REPAIRED, RETRAINED
from tests.support.results import judged, measured, unit

GUARANTEE = "The projected weights hold nothing of the deleted nodes’ features"
METIS = "graph eraser, linear, metis, mean"
DIFFUSED = "lethe, projection, with diffusion"


def right(method: str, *shares: float, dataset: str = "cora") -> list[dict[str, Any]]:
    """Test accuracies without a deletion, one a seed."""
    return [
        unit("accuracy", method, {"all": {"accuracy": share}}, dataset=dataset, seed=seed)
        for seed, share in enumerate(shares)
    ]


def after(method: str, share: str = "0.05", experiment: str = "injection", /, **figures: float) -> dict[str, Any]:
    return unit(experiment, method, {share: figures})


def unchanged(count: int) -> dict[str, Any]:
    return unit("identity", LETHE, {"single": {"draws": 9, "unchanged": 9}, "0.01": {"draws": 9, "unchanged": count}})


def told(low: float) -> dict[str, Any]:
    return unit("lira", LETHE, {f"ovr, {NEVER_THERE_QUESTION}": {"auc": 0.6, "auc_low": low}})


def test_weights_that_a_deletion_leaves_as_they_were_hold_what_they_learned() -> None:
    assert measured(GUARANTEE, unchanged(0), told(0.49)).verdict is Verdict.REPRODUCED
    assert measured(GUARANTEE, unchanged(1)).verdict is Verdict.REFUTED
    assert measured(GUARANTEE, told(0.51)).verdict is Verdict.REFUTED
    # Promised of every graph, it is refuted by one.
    assert judged(GUARANTEE, unchanged(0), told(0.49)).verdict is Verdict.REFUTED


def test_algebra_that_is_wrong_needs_no_measurement() -> None:
    finding = judged("The appendix’ influence equation as printed")
    assert finding.verdict is Verdict.REFUTED
    assert finding.words == "It is false in general: see the smallest example."


@pytest.mark.parametrize("method", [LETHE, REPAIRED, RETRAINED, DIFFUSED, "projector, official code"])
def test_the_channel_is_to_be_gone_after_every_exact_method(method: str) -> None:
    name = "The projection takes the injected channel away"
    for left, verdict in ((1e-9, Verdict.REPRODUCED), (1e-3, Verdict.REFUTED)):
        record = after(method, channel_norm_before=20.0, channel_norm_after=left)
        assert judged(name, record).verdict is verdict


@pytest.mark.parametrize("method", ["influence", "fisher+, without noise", "influence+, authors' code", METIS])
def test_time_is_compared_with_every_baseline(method: str) -> None:
    name = "The projection takes less time than every baseline"
    for times, verdict in ((2.0, Verdict.REPRODUCED), (0.5, Verdict.REFUTED)):
        assert judged(name, after(LETHE, times_lethe=1.0), after(method, times_lethe=times)).verdict is verdict


def test_erasers_of_networks_are_not_compared_with_the_linear_model() -> None:
    network = "graph eraser, gcn, metis, mean"
    records = [after(each, times_lethe=1.0, accuracy_after=0.8) for each in (LETHE, RETRAINED)]
    records.append(after(network, times_lethe=0.1, accuracy_after=0.8))
    records += [after(each, "0.01", "closeness", weights=1.0, deleted=1.0) for each in (LETHE, network)]
    assert judged("GraphEraser costs accuracy", *records).verdict is Verdict.UNMEASURED
    assert judged("The projection’s weights are closest to retraining", *records).verdict is Verdict.UNMEASURED
    assert judged("The projection’s answers are closest to retraining", *records).verdict is Verdict.UNMEASURED
    assert network not in judged("The projection takes less time than every baseline", *records).words


def test_metis_and_means_are_compared_with_other_linear_erasers() -> None:
    name, other = "METIS and means are best for GraphEraser", "graph eraser, linear, blpa, learned"
    for accuracy, verdict in ((0.7, Verdict.REPRODUCED), (0.8, Verdict.REFUTED)):
        records = after(METIS, accuracy_after=0.75), after(other, accuracy_after=accuracy)
        # The paper says it of its large graphs alone.
        assert judged(name, *records).verdict is Verdict.UNMEASURED
        assert judged(name, *({**each, "dataset": ARXIV} for each in records)).verdict is verdict


def test_the_newton_steps_without_noise_are_all_compared() -> None:
    name = "The projection is closer to retraining than a Newton step"
    for method in ("influence, without noise", "influence+, authors' code", "fisher+, without noise"):
        for away, verdict in ((0.3, Verdict.REPRODUCED), (0.1, Verdict.REFUTED)):
            records = [after(each, "0.1", "closeness", weights=w) for each, w in ((LETHE, 0.2), (method, away))]
            assert judged(name, *records).verdict is verdict


def test_distances_are_compared_at_every_share() -> None:
    for name, figure in (
        ("The projection’s weights are closest to retraining", "weights"),
        ("The projection’s answers are closest to retraining", "test"),
    ):
        ours, theirs = (after(each, "0.1", "closeness", **{figure: 0.2}) for each in (LETHE, "fisher+"))
        assert judged(name, ours, theirs).verdict is Verdict.REFUTED
    assert (
        "Cora, 10%, test nodes, one seed: "
        in judged("The projection’s answers are closest to retraining", ours, theirs).words
    )


def test_neighbours_count_in_what_is_left_of_the_channel_without_noise() -> None:
    for left, verdict in ((0.2, Verdict.REPRODUCED), (1e-9, Verdict.REFUTED)):
        record = after("influence, without noise", channel_norm_before=1.0, channel_norm_after=left)
        assert judged("Neighbours have to be updated as well", record).verdict is verdict


def test_of_a_repair_the_time_after_the_projection_is_beside_retraining() -> None:
    name = "Fine-tuning is shorter than retraining"
    for ratio, verdict in ((2.9, Verdict.REPRODUCED), (3.1, Verdict.REFUTED)):
        times = (LETHE, 1.0), (REPAIRED, ratio), (RETRAINED, 2.0)
        records = [after(method, "0.01", "closeness", times_lethe=each) for method, each in times]
        assert judged(name, *records[:2]).verdict is Verdict.UNMEASURED
        found = judged(name, *records)
        assert found.verdict is verdict
        assert f"Cora {(ratio - 1) / 2:g}" in found.words


@pytest.mark.parametrize("when", ["before", "after"])
def test_diffusion_is_to_help_in_the_injection_test_as_well(when: str) -> None:
    for accuracy, verdict in ((0.7, Verdict.REPRODUCED), (0.9, Verdict.REFUTED)):
        records = [after(DIFFUSED, **{f"accuracy_{when}": 0.8}), after(LETHE, **{f"accuracy_{when}": accuracy})]
        assert judged("Adaptive diffusion always helps", *records).verdict is verdict


def test_where_a_seed_draws_the_split_accuracies_are_of_the_same_seeds() -> None:
    name = "The linear model is better than ordinary GNNs"
    ours, theirs = (0.9, 0.5, 0.5), (0.8,)
    records = [
        right(method, *shares, dataset="amazon_photo") for method, shares in (("+ diffusion", ours), ("sage", theirs))
    ]
    assert judged(name, *records[0], *records[1]).verdict is Verdict.REPRODUCED
    # With one split for all, every seed counts.
    records = [right(method, *shares) for method, shares in (("+ diffusion", ours), ("sage", theirs))]
    assert judged(name, *records[0], *records[1]).verdict is Verdict.REFUTED


@pytest.mark.parametrize(
    ("deep", "plain"),
    [("+ MLP, 10 % public", "linear"), ("+ MLP, 50 % public", "linear"), (DIFFUSED_MLP, "+ diffusion")],
)
def test_an_mlp_is_compared_with_the_same_model_without_it(deep: str, plain: str) -> None:
    name = "An MLP raises accuracy"
    assert judged(name, *right(deep, 0.8), *right(plain, 0.7)).verdict is Verdict.REPRODUCED
    worse = [*right(deep, 0.6), *right(plain, 0.7)]
    assert judged(name, *worse).verdict is Verdict.REFUTED
    other = [
        record
        for dataset in ("pubmed", "citeseer")
        for record in (*right(deep, 0.9, dataset=dataset), *right(plain, 0.7, dataset=dataset))
    ]
    assert judged(name, *worse, *other).verdict is Verdict.REPRODUCED

    name, spread, steady = "An MLP makes accuracy vary", (0.1, 0.2, 0.3, 0.4, 0.5), (0.30, 0.31, 0.32, 0.33, 0.34)
    assert judged(name, *right(deep, *spread), *right(plain, *steady)).verdict is Verdict.REPRODUCED
    assert judged(name, *right(deep, *steady), *right(plain, *spread)).verdict is Verdict.REFUTED
    # Of fewer seeds, or where they draw nothing of the model without, deviations tell nothing.
    for without in (steady[:4], steady[:1], (0.3,) * 5):
        assert judged(name, *right(deep, *spread), *right(plain, *without)).verdict is Verdict.UNMEASURED


def test_of_cases_that_fail_the_ties_are_counted() -> None:
    records = [after(method, share, accuracy_after=0.8) for method in (LETHE, RETRAINED) for share in ("0.05", "0.1")]
    records[0]["cases"]["0.05"]["accuracy_after"] = 0.7
    words = judged("The projection is slightly better than retraining", *records).words
    assert words.startswith("It fails in all 2 cases measured, 1 of them at the very limit. Worst: Cora, 5%")
