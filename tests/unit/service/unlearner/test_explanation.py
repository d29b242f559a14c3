"""The text of an audit: the effect of the projection, the effect of the repair, and what is still open."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

from model_store.manifest import Accuracy, Encoder, FeatureDtype, FeatureLayout, Manifest, TrainingRecord
from projector.forgetting.status import RepairStatus
from projector.network.diffusion import Diffusion
from projector.network.spec import ModelSpec, SolverKind
from projector.training.mlp import MlpRecord
from service.domain.figures import RequestNorms
from service.domain.kinds import RequestKind
from service.domain.records import BatchRecord
from service.domain.states import Cause, Guarantee
from service.unlearner.outcomes import ended, explain, guarantee, nothing_left, repair_given_up
from service.unlearner.pending_repairs import Pending
from tests.support.service.db_harness import made
from tests.support.service.records import BATCH

RECORD = replace(
    BATCH,
    nodes=2,
    features=0,
    edges=0,
    rank_before=10,
    rank_after=10,
    directions_removed=0,
    lost_direction_norm_before=None,
    lost_direction_norm_after=None,
    weight_change=0.0,
    distance_bound_start_relative=None,
    factor_age_s=None,
    durations_ms={"project": 2.0},
    distance_bound_after=4.1,
    distance_bound_after_relative=0.2,
)
CONVERGED = replace(
    RECORD,
    repair=RepairStatus.CONVERGED,
    repair_version=7,
    repair_weights_sha256="b" * 64,
    weight_change=0.1234,
    repair_weight_change=0.1234,
    repair_tolerance=1e-8,
    repair_iterations=3,
    distance_bound_after=2e-9,
    distance_bound_after_relative=1e-10,
)
#: The version in which a repair for several batches ended.
ENDED = made(
    9,
    cause=Cause.REPAIR,
    weights_sha256="c" * 64,
    durations_ms={"repair": 812.5},
    distance_bound_after=1e-9,
    distance_bound_after_relative=1e-11,
    repair=RepairStatus.CONVERGED,
    repair_version=9,
    repair_iterations=4,
    repair_weight_change=0.05,
    repair_tolerance=1e-6,
)
MANIFEST = Manifest(
    name="m",
    created_at=datetime(2026, 1, 1, tzinfo=UTC),
    dataset="synthetic",
    split="full",
    spec=ModelSpec(),
    nodes=20,
    edges=30,
    features=10,
    feature_layout=FeatureLayout.DENSE,
    feature_dtype=FeatureDtype.FLOAT64,
    classes=("a", "b"),
    rank=10,
    sigma_ref_squared=9.0,
    rank_tolerance=1e-10,
    condition_number=3.0,
    accuracy=Accuracy(None, None, None),
    training=TrainingRecord(relative_gradient=3e-12, identity_error=1e-15, iterations=9, seconds=1.0, device="cpu"),
)
#: A model that was trained for 200 epochs and no further.
STOPPED = replace(
    MANIFEST, spec=ModelSpec(solver=SolverKind.SGD), training=replace(MANIFEST.training, relative_gradient=4.2)
)
FROZEN: dict[str, tuple[Any, str]] = {
    "diffusion": (Diffusion(0.5, 0.25), "the sigmas of the diffusion"),
    "encoder": (Encoder("SAGE", "ab" * 32), f"the encoder SAGE (SHA-256 {'ab' * 32}), which computed the features"),
    "spec": (ModelSpec(class_weights=(0.5, 2.0)), "the weights of the classes in the loss, counted while"),
    "temperature": (0.15, "the temperature of the probabilities"),
    "mlp": (MlpRecord(width=8, public_nodes=5), "the MLP that computes the features, trained only on public nodes"),
    "column_scale": ((3, -2), "the scales of the feature columns, fixed at the import"),
}
TWO_LOST: dict[str, Any] = {
    "directions_removed": 2,
    "rank_after": 8,
    "lost_direction_norm_before": 0.129,
    "lost_direction_norm_after": 2e-16,
}


def said(
    record: BatchRecord,
    kind: RequestKind = RequestKind.NODE,
    manifest: Manifest = MANIFEST,
    *,
    named: int = 2,
    deleted: int = 2,
) -> str:
    return explain(record, kind, manifest, RequestNorms(deleted, None, None, None, None), named=named)


def test_a_projection_that_changed_nothing_leaves_the_forgetting_to_the_repair() -> None:
    words = said(CONVERGED)
    assert words.startswith("The projection changed nothing:")
    assert "The graph, the predictions and the coefficients no longer contain the deleted nodes." in words
    assert words.endswith(
        "The repair did the forgetting: it re-optimised the weights on the remaining graph and moved them by 12.3%. "
        "They are now those of retraining, at most 0.1 parts per billion (1.00 × 10⁻¹⁰) of their size away from them."
    )
    assert "not those of retraining" not in words


def test_a_projection_that_removed_directions_leaves_the_rest_to_the_repair() -> None:
    words = said(replace(CONVERGED, **TWO_LOST))
    assert words.startswith("The projection removed 2 directions of the weights that only deleted nodes had supported")
    assert "(together 0.129 before, 2.00 × 10⁻¹⁶ after)" in words
    assert "The repair did the rest: " in words
    assert "The projection removed one direction" in said(replace(CONVERGED, **TWO_LOST | {"directions_removed": 1}))


@pytest.mark.parametrize("kind", list(RequestKind))
@pytest.mark.parametrize("part", FROZEN)
def test_what_repair_leaves_as_it_was_fixed_before_is_named_where_the_weights_are_said_to_be_retrained(
    kind: RequestKind, part: str
) -> None:
    value, words = FROZEN[part]
    manifest = replace(MANIFEST, **{part: value})
    assert f"keeps the frozen parts as they are: {words}" in said(CONVERGED, kind, manifest)
    assert "keeps the frozen parts" not in said(CONVERGED, kind)
    # Weights that are not retrained carry no claim for it to limit.
    for record in (RECORD, replace(RECORD, repair=RepairStatus.PENDING)):
        assert "keeps the frozen parts" not in said(record, kind, manifest)
    end = ended(PENDING, ENDED, manifest)
    assert words in end.explanation


def test_an_encoder_is_named_with_what_it_may_keep_whatever_became_of_the_weights() -> None:
    manifest = replace(MANIFEST, encoder=Encoder("SAGE"))
    for record in (RECORD, CONVERGED, replace(RECORD, repair=RepairStatus.PENDING)):
        for kind in (RequestKind.NODE, RequestKind.FEATURES, RequestKind.LABEL):
            words = said(record, kind, manifest)
            assert "outputs of the encoder SAGE, which may have seen the deleted data" in words
            assert "only the linear model on top of it forgets" in words
        assert "may have seen" not in said(record, RequestKind.ADDITION, manifest)


def test_what_a_repair_moves_is_not_credited_to_forgetting_where_training_had_stopped_early() -> None:
    record = replace(CONVERGED, repair_weight_change=1.5, distance_bound_start_relative=4.2)
    words = said(record, manifest=STOPPED)
    assert "did the forgetting" not in words
    assert "moved them by 150%. They are now those of retraining, at most " in words
    assert words.endswith(
        "Part of that may not be forgetting: when the deletion began, the weights were up to 420% of their size "
        "away from the optimum of the graph at that time, because training had stopped early and no repair had "
        "reached the optimum yet."
    )
    # The next one begins at an optimum.
    assert "did the forgetting" in said(replace(record, distance_bound_start_relative=3e-9), manifest=STOPPED)
    # The rest of an earlier batch's work is forgetting.
    assert "did the forgetting" in said(record)
    # An effect invisible beside the movement needs no sentence.
    assert "did the forgetting" in said(replace(record, distance_bound_start_relative=0.01), manifest=STOPPED)
    # An earlier repair within the tolerance has finished its work, however little the next one moves.
    record = replace(record, repair_weight_change=1e-5, distance_bound_start_relative=9e-7, repair_tolerance=1e-6)
    assert "did the forgetting" in said(record, manifest=STOPPED)
    assert "Part of that may not be" in said(replace(record, repair_tolerance=1e-8), manifest=STOPPED)


@pytest.mark.parametrize("repair", [RepairStatus.CONVERGED, RepairStatus.PENDING, RepairStatus.NOT_CONVERGED])
def test_what_was_made_before_a_deletion_and_stays_in_memory_is_named(repair: RepairStatus) -> None:
    record = replace(CONVERGED, repair=repair)
    words = said(replace(record, factor_age_s=60.0))
    assert (
        "a factor of the loss's curvature from before this deletion may stay in memory for up to 60 s after it."
        in words
    )
    assert "never written to disk and does not influence what the weights converge to." in words
    for age in (0.0, None):
        assert "in memory" not in said(replace(record, factor_age_s=age))


def test_without_a_repair_the_weights_are_said_not_to_be_those_of_retraining() -> None:
    assert said(RECORD).endswith(
        "The weights are not those of retraining, but at most 20% of their size away from them."
    )
    unknown = replace(RECORD, distance_bound_after=None, distance_bound_after_relative=None)
    assert said(unknown).endswith("The weights are not those of retraining.")
    zero = replace(RECORD, distance_bound_after_relative=None)
    assert said(zero).endswith("at most 4.1 away from them.")


def test_of_an_edge_the_graph_alone_forgets_until_a_repair_has_ended() -> None:
    never = said(RECORD, RequestKind.EDGE)
    assert "the projection had nothing to do and there are no norms to report" in never
    assert "Only the graph has forgotten the edges, and the weights are not those of retraining" in never
    pending = said(replace(RECORD, repair=RepairStatus.PENDING), RequestKind.EDGE)
    assert "only the graph has forgotten the edges so far" in pending
    # A direction lost by another request of the batch does not count for this one.
    repaired = said(replace(CONVERGED, **TWO_LOST), RequestKind.EDGE)
    assert "The repair did the forgetting: " in repaired
    assert "projection removed" not in repaired
    assert "only the graph" not in repaired


def test_a_repair_that_goes_on_or_fell_short_states_the_bound() -> None:
    pending = said(replace(RECORD, repair=RepairStatus.PENDING))
    assert (
        "is under way: until it ends, the weights are not those of retraining, but at most 20% of their size" in pending
    )
    short = said(replace(CONVERGED, repair=RepairStatus.NOT_CONVERGED, distance_bound_after_relative=0.01))
    assert "The repair did not converge; an operator should investigate: the weights are not those of" in short
    assert "at most 1% of their size" in short


def test_a_repair_that_moved_nothing_or_ended_later_says_so() -> None:
    assert "The repair had nothing to do: the weights are those of retraining, at most 0.1 parts" in said(
        replace(CONVERGED, repair_weight_change=0.0)
    )
    assert "The repair (model version 9) did the forgetting: " in said(replace(CONVERGED, repair_version=9))


def test_features_leave_their_nodes_and_what_was_gone_is_counted() -> None:
    words = said(replace(CONVERGED, nodes=0, features=1), RequestKind.FEATURES, deleted=1)
    assert "The nodes themselves stay, with their edges and labels." in words
    assert words.endswith("1 of the 2 nodes' features that the request names was already gone.")
    by = (UUID(int=1), UUID(int=2))
    assert nothing_left(RequestKind.EDGE, named=2, with_node=1, by=by) == (
        f"Nothing was left to do: the edges that this request names had already been deleted by requests {by[0]}, "
        f"{by[1]}, 1 of them together with a node."
    )


@pytest.mark.parametrize("kind", list(RequestKind))
@pytest.mark.parametrize("repair", list(RepairStatus))
def test_the_guarantee_is_retrained_exactly_when_the_repair_converged(kind: RequestKind, repair: RepairStatus) -> None:
    otherwise = Guarantee.SPAN if kind in (RequestKind.NODE, RequestKind.FEATURES) else Guarantee.GRAPH_ONLY
    converged = repair is RepairStatus.CONVERGED
    assert guarantee(repair, kind) is (Guarantee.RETRAINED if converged else otherwise)


PENDING = Pending(
    request_id=uuid4(),
    kind=RequestKind.NODE,
    count=2,
    batch=replace(RECORD, repair=RepairStatus.PENDING, durations_ms={"project": 2.0, "repair": 5.0}),
    norms=RequestNorms(2, 0.2, 0.0, None, None),
)


def test_a_repair_that_fell_short_or_was_given_up_leaves_the_paper_s_guarantee() -> None:
    short = ended(PENDING, replace(ENDED, repair=RepairStatus.NOT_CONVERGED), MANIFEST)
    assert (short.guarantee, short.content.document()["repair"]) == (Guarantee.SPAN, "not_converged")
    given_up = repair_given_up(PENDING, RepairStatus.NONE, "The operator turned repair off.", MANIFEST)
    assert (given_up.guarantee, given_up.batch.repair) == (Guarantee.SPAN, RepairStatus.NONE)
    said = given_up.content.document()
    assert (said["repair"], said["repair_version"]) == ("none", None)
