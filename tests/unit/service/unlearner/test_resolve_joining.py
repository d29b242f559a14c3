"""What joins in a batch: beside what leaves, in the order of arrival, and never against a later deletion."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import numpy as np
import pytest
import scipy.sparse as sp

from projector.graph.edges import Edges
from service.domain.kinds import Part, RequestKind, Target
from service.domain.records import NodeContent, QueuedRequest, Targets
from service.domain.states import RequestStatus
from service.unlearner.claims import CommittedGraph, DecryptedRequest, Known
from service.unlearner.outcomes import nothing_left
from service.unlearner.resolve import Resolution, absent, resolve

NODE, FEATURES, LABEL, EDGE = RequestKind.NODE, RequestKind.FEATURES, RequestKind.LABEL, RequestKind.EDGE
ADDITION, CORRECTION = RequestKind.ADDITION, RequestKind.CORRECTION
START = datetime(2026, 3, 2, tzinfo=UTC)
#: Nodes 0 … 7 in a ring, of which 6 is deleted and 7 is not trained on.
IDS = [str(number) for number in range(8)]
DELETION = uuid4()
ZERO = NodeContent({})


def present() -> CommittedGraph:
    ring = np.roll(np.eye(8), 1, axis=1)
    live = np.ones(8, dtype=np.bool_)
    live[6] = False
    trained = live.copy()
    trained[7] = False
    rows = {node: row for row, node in enumerate(IDS) if live[row]}
    return CommittedGraph(rows, live, trained, Edges(sp.csr_array(ring + ring.T), live))


def claim(
    kind: RequestKind,
    *named: Target,
    content: Mapping[str, NodeContent] | None = None,
    minute: int = 0,
) -> DecryptedRequest:
    edges = tuple(one for one in named if not isinstance(one, str))
    content = content or {}
    nodes = (*(one for one in named if isinstance(one, str)), *content)
    targets = Targets(nodes=nodes, edges=edges, content=content)
    received = START + timedelta(minutes=minute)
    request = QueuedRequest(uuid4(), kind, RequestStatus.QUEUED, targets.count, b"", None, received, None)
    return DecryptedRequest(request, targets)


def resolved(
    *claimed: DecryptedRequest, queued: Sequence[str] = (), deleted_minute: int = -1, deleted: str = "6"
) -> Resolution:
    deleted_by: dict[Part, dict[Target, UUID | None]] = {part: {} for part in Part}
    deleted_by[Part.NODES] = {"6": DELETION, deleted: DELETION}
    known = Known(deleted_by, frozenset(queued), {DELETION: START + timedelta(minutes=deleted_minute)})
    return resolve(claimed, present(), known)


def done(resolution: Resolution) -> list[DecryptedRequest]:
    return [change.claimed for change in resolution.changes]


def test_new_nodes_join_with_edges_to_each_other_and_to_what_is_there() -> None:
    added = claim(ADDITION, ("new", "3"), ("other", "new"), ("0", "2"), content={"new": ZERO, "other": ZERO})
    [change] = resolved(added).changes
    assert change.joins.nodes == ("new", "other")
    assert change.joins.edges == (("3", "new"), ("new", "other"), ("0", "2"))
    assert (change.joins.count, change.joins.rejoined, change.targets) == (5, 0, ())
    assert absent([added], present())[Part.NODES] == {"new", "other"}


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (claim(ADDITION, content={"3": ZERO}), "A node that it adds is in the graph already."),
        (claim(ADDITION, ("0", "1")), "An edge that it adds is in the graph already."),
        (claim(ADDITION, ("0", "2"), ("2", "0")), "An edge is named twice."),
        (claim(ADDITION, ("0", "nobody")), "An edge ends at a node that is not in the graph."),
        (claim(ADDITION, ("0", "6")), "An edge ends at a node that was deleted."),
        (claim(CORRECTION, content={"nobody": ZERO}), "A node that it corrects is not in the graph."),
    ],
)
def test_what_does_not_fit_fails_with_a_reason_that_names_no_node(request_: DecryptedRequest, reason: str) -> None:
    other = claim(ADDITION, content={"other": ZERO})
    resolution = resolved(request_, other)
    assert resolution.unfit == {request_.request.id: f"{reason} Nothing of this request joined."}
    assert done(resolution) == [other]


def test_a_deleted_node_is_left_out_with_its_edges_unless_the_caller_says_that_it_rejoins() -> None:
    with_others = claim(ADDITION, ("6", "0"), ("new", "1"), content={"6": ZERO, "new": ZERO})
    alone = claim(ADDITION, content={"6": ZERO})
    resolution = resolved(with_others, alone)
    [change] = resolution.changes
    assert (change.joins.nodes, change.joins.edges) == (("new",), (("1", "new"),))
    [(beaten, gone)] = resolution.already_deleted
    assert (beaten, gone.by) == (alone, (DELETION,))
    assert nothing_left(ADDITION, named=1, with_node=0, by=gone.by).startswith("Nothing joined")
    [change] = resolved(claim(ADDITION, ("6", "0"), content={"6": NodeContent({}, rejoin=True)})).changes
    assert (change.joins.nodes, change.joins.edges, change.joins.rejoined) == (("6",), (("0", "6"),), 1)
    assert {*change.joins.lifted} == {
        *((part, "6") for part in (Part.NODES, Part.FEATURES)),
        (Part.EDGES, ("0", "6")),
    }
    labelled = {"6": NodeContent({}, label="0", rejoin=True)}
    [change] = resolved(claim(ADDITION, content=labelled)).changes
    assert (Part.LABELS, "6") in change.joins.lifted


def test_a_deletion_that_came_later_beats_even_a_node_that_is_to_rejoin() -> None:
    again = claim(ADDITION, content={"6": NodeContent({}, rejoin=True)}, minute=5)
    assert done(resolved(again, deleted_minute=4)) == [again]
    assert resolved(again, deleted_minute=6).already_deleted[0][0] is again


def test_an_edge_to_who_was_deleted_after_it_was_asked_for_is_left_out_and_the_rest_joins() -> None:
    added = claim(ADDITION, ("new", "6"), ("new", "1"), content={"new": ZERO}, minute=5)
    [change] = resolved(added, deleted_minute=6).changes
    assert (change.joins.nodes, change.joins.edges) == (("new",), (("1", "new"),))
    # Who asks after the deletion has made a mistake, and learns of it.
    assert "was deleted" in resolved(added, deleted_minute=4).unfit[added.request.id]
    alone = claim(ADDITION, ("1", "6"), minute=5)
    [(beaten, gone)] = resolved(alone, deleted_minute=6).already_deleted
    assert (beaten, gone.by) == (alone, (DELETION,))


def test_a_deletion_of_what_is_queued_lays_its_tombstone_and_the_addition_waits_for_it() -> None:
    added, deleted = claim(ADDITION, content={"new": ZERO}), claim(NODE, "new", "3", minute=1)
    resolution = resolved(added, deleted, queued=["new"])
    [change] = resolution.changes
    assert (change.claimed, change.targets, change.removal.nodes.tolist()) == (deleted, ("new", "3"), [3])
    assert resolution.deferred == (added,)
    assert resolved(deleted).unknown == {deleted.request.id: 1}


def test_a_deletion_beats_a_node_that_was_deleted_before_and_is_queued_to_rejoin() -> None:
    again = claim(ADDITION, content={"6": NodeContent({}, rejoin=True)})
    deleted = claim(NODE, "6", minute=1)
    resolution = resolved(again, deleted, queued=["6"])
    assert (done(resolution), resolution.deferred) == ([deleted], (again,))


def test_a_node_waits_for_a_deletion_of_it_that_waits_for_another() -> None:
    first, second = claim(NODE, "3"), claim(NODE, "3", "new", minute=2)
    added = claim(ADDITION, content={"new": ZERO}, minute=1)
    resolution = resolved(first, added, second, queued=["new"])
    assert (done(resolution), resolution.deferred) == ([first], (second, added))


def test_nothing_overtakes_an_earlier_request_that_waits() -> None:
    a, b = claim(ADDITION, content={"a": ZERO}), claim(ADDITION, ("a", "b"), content={"b": ZERO})
    later = [
        claim(ADDITION, ("b", "c"), content={"c": ZERO}),
        claim(ADDITION, content={"b": ZERO}),
        claim(ADDITION, ("b", "a")),
        claim(CORRECTION, content={"b": ZERO}),
    ]
    for each in later:
        resolution = resolved(a, b, each)
        assert (done(resolution), resolution.deferred, resolution.unfit) == ([a], (b, each), {})
    label, both = NodeContent(label="a"), NodeContent({}, "b")
    corrections = claim(CORRECTION, content={"3": both}), claim(CORRECTION, content={"3": label})
    leaving = claim(FEATURES, "3")
    assert resolved(leaving, *corrections).deferred == corrections
    corrected, withdrawn = claim(CORRECTION, content={"3": label}), claim(LABEL, "3", "0")
    anew = claim(CORRECTION, content={"0": label})
    assert resolved(corrected, withdrawn, anew).deferred == (withdrawn, anew)


def test_a_correction_waits_for_the_node_that_rejoins() -> None:
    again, corrected = (
        claim(ADDITION, content={"6": NodeContent({}, rejoin=True)}),
        claim(CORRECTION, content={"6": ZERO}),
    )
    resolution = resolved(again, corrected)
    assert (done(resolution), resolution.deferred) == ([again], (corrected,))


def test_an_edge_waits_for_a_deletion_that_names_it_although_it_was_gone() -> None:
    # After a crash the deleted edges of a batch are all those that its requests name.
    deleted = claim(EDGE, ("5", "6"), ("0", "1"))
    again = claim(ADDITION, ("5", "6"), content={"6": NodeContent({}, rejoin=True)})
    resolution = resolved(deleted, again)
    assert (done(resolution), resolution.deferred) == ([deleted], (again,))


@pytest.mark.parametrize(
    ("leaving", "joining"),
    [
        (claim(NODE, "3"), claim(ADDITION, ("3", "0"))),
        (claim(NODE, "3"), claim(ADDITION, content={"3": NodeContent({}, rejoin=True)})),
        (claim(NODE, "3"), claim(CORRECTION, content={"3": ZERO})),
        (claim(FEATURES, "3"), claim(CORRECTION, content={"3": ZERO})),
        (claim(LABEL, "3"), claim(CORRECTION, content={"3": NodeContent(label="a")})),
        (claim(EDGE, ("0", "1")), claim(ADDITION, ("1", "0"))),
    ],
)
def test_what_joins_waits_for_what_leaves_of_the_same(leaving: DecryptedRequest, joining: DecryptedRequest) -> None:
    resolution = resolved(leaving, joining)
    assert (done(resolution), resolution.deferred) == ([leaving], (joining,))


def test_a_deletion_of_features_or_labels_that_were_corrected_before_deletes_the_corrected_ones() -> None:
    for kind, content in ((FEATURES, ZERO), (LABEL, NodeContent(label="a"))):
        corrected, deleted = claim(CORRECTION, content={"3": content}), claim(kind, "3")
        resolution = resolved(corrected, deleted)
        assert (done(resolution), resolution.deferred) == ([corrected], (deleted,))


@pytest.mark.parametrize("edge", [("0", "1"), ("0", "2"), ("0", "6")])
def test_a_deletion_of_an_edge_that_was_added_before_deletes_the_added_one(edge: tuple[str, str]) -> None:
    # It may be there already, so that the addition fails; never have been there; or have gone with a node.
    added, deleted = claim(ADDITION, edge, content={"6": NodeContent({}, rejoin=True)}), claim(EDGE, edge[::-1])
    resolution = resolved(added, deleted)
    assert (resolution.deferred, resolution.unknown, resolution.already_deleted) == ((deleted,), {}, ())


def test_of_two_that_add_or_correct_the_same_the_earlier_goes_first() -> None:
    pairs = [
        (claim(ADDITION, content={"new": ZERO}), claim(ADDITION, content={"new": ZERO})),
        (claim(ADDITION, content={"new": ZERO}), claim(ADDITION, ("new", "0"))),
        (claim(ADDITION, ("0", "2")), claim(ADDITION, ("2", "0"))),
        (claim(CORRECTION, content={"3": ZERO}), claim(CORRECTION, content={"3": ZERO})),
        (claim(ADDITION, content={"new": ZERO}), claim(CORRECTION, content={"new": ZERO})),
    ]
    for first, second in pairs:
        resolution = resolved(first, second)
        assert (done(resolution), resolution.deferred) == ([first], (second,))


def test_a_correction_replaces_what_is_there_alone() -> None:
    both = NodeContent({}, "a")
    [change] = resolved(claim(CORRECTION, content={"3": both, "7": both, "0": ZERO})).changes
    assert change.removal.features.tolist() == [3, 7, 0]
    # Nobody trains on 7.
    assert change.removal.labels.tolist() == [3]
    assert change.joins.corrected == ("3", "7", "0")


def test_a_label_that_nobody_trains_on_is_withdrawn_from_later_models() -> None:
    [change] = resolved(claim(LABEL, "7", "3")).changes
    assert (change.targets, change.removal.labels.tolist()) == (("7", "3"), [3])
