"""The deletions of each request in a mixed batch: precedence, overlaps, already deleted and unknown targets."""

from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import UUID, uuid4

import numpy as np
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from projector.graph.edges import Edges
from service.domain.kinds import Names, Part, RequestKind, Target
from service.domain.records import QueuedRequest, Targets
from service.domain.states import RequestStatus
from service.unlearner.claims import CommittedGraph, DecryptedRequest, DeletedBy, DeletedEarlier, Known
from service.unlearner.outcomes import nothing_left
from service.unlearner.resolve import Resolution, absent, resolve

NODE, FEATURES, EDGE = RequestKind.NODE, RequestKind.FEATURES, RequestKind.EDGE
#: Nodes 0 … 7 in a ring; 6 and the edge 0-1 and the features of 2 are gone.
IDS = [str(number) for number in range(8)]
EARLIER: dict[RequestKind, UUID] = {kind: uuid4() for kind in RequestKind}
TOMBSTONES: dict[Part, dict[Target, UUID | None]] = {
    Part.NODES: {"6": EARLIER[NODE]},
    Part.FEATURES: {"2": EARLIER[FEATURES]},
    Part.LABELS: {},
    Part.EDGES: {("0", "1"): EARLIER[EDGE]},
}


def present() -> CommittedGraph:
    ring = np.roll(np.eye(8), 1, axis=1)
    ring[0, 1] = 0.0
    live, featured = np.ones(8, dtype=np.bool_), np.ones(8, dtype=np.bool_)
    live[6] = featured[6] = featured[2] = False
    rows = {node: row for row, node in enumerate(IDS) if live[row]}
    return CommittedGraph(rows, featured, featured, Edges(sp.csr_array(ring + ring.T), live))


def claim(kind: RequestKind, *subjects: Target) -> DecryptedRequest:
    nodes = tuple(subject for subject in subjects if isinstance(subject, str))
    edges = tuple(subject for subject in subjects if not isinstance(subject, str))
    received = datetime(2026, 3, 2, tzinfo=UTC)
    request = QueuedRequest(uuid4(), kind, RequestStatus.QUEUED, len(subjects), b"", None, received, None)
    return DecryptedRequest(request, Targets(nodes=nodes, edges=edges))


def resolved(*claimed: DecryptedRequest) -> Resolution:
    return resolve(claimed, present(), Known(TOMBSTONES))


def test_each_kind_is_resolved_to_its_rows() -> None:
    requests = claim(EDGE, ("4", "3"), ("7", "0")), claim(FEATURES, "1", "4"), claim(NODE, "5")
    edges, features, node = resolved(*requests).changes
    assert (edges.targets, edges.removal.edges.tolist()) == ((("3", "4"), ("0", "7")), [[3, 4], [0, 7]])
    assert (features.targets, features.removal.features.tolist()) == (("1", "4"), [1, 4])
    assert (node.targets, node.removal.nodes.tolist()) == (("5",), [5])
    assert edges.removal.rows.size == features.removal.nodes.size == features.removal.edges.size == 0
    assert node.removal.features.size == node.removal.edges.size == 0
    assert [each.claimed for each in (edges, features, node)] == list(requests)


def test_a_node_takes_its_features_and_its_edges_along_whoever_asked_first() -> None:
    edge, features = claim(EDGE, ("3", "4")), claim(FEATURES, "3")
    node = claim(NODE, "3")
    resolution = resolved(edge, features, node)
    assert [each.claimed for each in resolution.changes] == [node]
    assert set(resolution.deferred) == {edge, features}


def test_a_request_of_which_something_goes_with_another_waits_whole() -> None:
    """If the other were cancelled before the commit, no request would delete its remaining part."""
    edge = claim(EDGE, ("3", "4"), ("4", "5"))
    features = claim(FEATURES, "3", "1")
    node = claim(NODE, "3")
    resolution = resolved(edge, features, node)
    assert [each.targets for each in resolution.changes] == [("3",)]
    assert set(resolution.deferred) == {edge, features}
    assert [each.targets for each in resolved(edge, features).changes] == [edge.named, features.named]


def test_features_do_not_take_edges_along_nor_edges_anything() -> None:
    assert len(resolved(claim(EDGE, ("3", "4")), claim(FEATURES, "3", "4")).changes) == 2


def test_of_two_requests_for_the_same_the_earlier_does_it() -> None:
    for kind, subject in ((NODE, "3"), (FEATURES, "3"), (EDGE, ("3", "4"))):
        first, second = claim(kind, subject), claim(kind, subject)
        resolution = resolved(first, second)
        assert [each.claimed for each in resolution.changes] == [first]
        assert resolution.deferred == (second,)


def test_what_is_gone_names_who_deleted_it_and_what_went_with_a_node() -> None:
    node, features = claim(NODE, "6"), claim(FEATURES, "2", "6")
    edges = claim(EDGE, ("6", "5"), ("1", "0"))
    gone = {each.request.id: how for each, how in resolved(node, features, edges).already_deleted}
    assert (gone[node.request.id].by, gone[node.request.id].with_node) == ((EARLIER[NODE],), 0)
    assert gone[features.request.id].by == (EARLIER[FEATURES], EARLIER[NODE])
    assert gone[features.request.id].with_node == 1
    assert gone[edges.request.id].by == (EARLIER[NODE], EARLIER[EDGE])
    assert gone[edges.request.id].with_node == 1


def test_what_was_deleted_by_requests_that_a_restored_database_does_not_have_is_gone_without_their_ids() -> None:
    tombstones: DeletedBy = {**TOMBSTONES, Part.FEATURES: {"2": None}, Part.NODES: {"6": EARLIER[NODE], "x": None}}
    features, node, rest = claim(FEATURES, "2", "6"), claim(NODE, "x"), claim(FEATURES, "2", "3")
    resolution = resolve((features, node, rest), present(), Known(tombstones))
    gone = {each.request.id: how for each, how in resolution.already_deleted}
    assert gone == {features.request.id: DeletedEarlier((EARLIER[NODE],), 1), node.request.id: DeletedEarlier((), 0)}
    assert [(each.claimed, each.targets) for each in resolution.changes] == [(rest, ("3",))]
    assert resolution.unknown == {}


def test_what_never_was_is_counted() -> None:
    node, features = claim(NODE, "x", "3", "y"), claim(FEATURES, "x", "6")
    edges = claim(EDGE, ("3", "5"), ("x", "3"), ("0", "7"), ("0", "1"))
    resolution = resolved(node, features, edges)
    assert resolution.unknown == {node.request.id: 2, features.request.id: 1, edges.request.id: 2}
    assert resolution.changes == ()


def test_the_tombstones_asked_for_are_those_of_what_is_missing() -> None:
    claimed = claim(NODE, "3", "6"), claim(FEATURES, "2", "x", "4"), claim(EDGE, ("1", "0"), ("5", "6"), ("3", "4"))
    assert absent(claimed, present()) == {
        Part.NODES: {"6", "x"},
        Part.FEATURES: {"2", "x"},
        Part.LABELS: set(),
        Part.EDGES: {("0", "1"), ("5", "6")},
    }


SUBJECTS: dict[Names, list[Target]] = {
    Names.NODES: [*IDS],
    Names.EDGES: [(min(a, b), max(a, b)) for a, b in zip(IDS, [*IDS[1:], IDS[0]], strict=True)],
}
REQUESTS = st.lists(
    st.sampled_from([NODE, FEATURES, EDGE]).flatmap(
        lambda kind: st.lists(st.sampled_from(SUBJECTS[kind.rules.names]), min_size=1, max_size=4, unique=True).map(
            lambda subjects: claim(kind, *subjects)
        )
    ),
    max_size=8,
)


def ends(subjects: Sequence[Target]) -> set[str]:
    return {end for subject in subjects for end in ((subject,) if isinstance(subject, str) else subject)}


@given(claimed=REQUESTS)
def test_whatever_is_asked_is_deleted_once_and_everything_asked_is_gone_afterwards(
    claimed: list[DecryptedRequest],
) -> None:
    resolution = resolved(*claimed)
    done = [each.claimed for each in resolution.changes]
    ended = [*done, *resolution.deferred]
    assert sorted(
        [*(each.request.id for each in ended), *(each.request.id for each, _ in resolution.already_deleted)]
    ) == sorted(each.request.id for each in claimed)
    deleted = {
        kind: [target for each in resolution.changes if each.claimed.request.kind is kind for target in each.targets]
        for kind in RequestKind
    }
    assert all(len(set(subjects)) == len(subjects) for subjects in deleted.values())
    nodes = set(deleted[NODE])
    assert nodes.isdisjoint(deleted[FEATURES])
    assert nodes.isdisjoint(ends(deleted[EDGE]))
    assert done == [each for each in claimed if each in done]
    assert done or not resolution.deferred
    for each in done:
        for subject in each.named:
            gone_before = subject in TOMBSTONES[each.part] or "6" in ends([subject])
            assert gone_before or subject in deleted[each.request.kind]


def test_the_words_for_nothing_left_fit_the_numbers() -> None:
    first, second = UUID(int=1), UUID(int=2)
    assert f"the node that this request names had already been deleted by request {first}." in nothing_left(
        NODE, named=1, with_node=0, by=[first]
    )
    assert "edge that this request names" in nothing_left(EDGE, named=1, with_node=1, by=[first])
    assert nothing_left(EDGE, named=1, with_node=1, by=[first]).endswith(f"{first}, together with a node.")
    assert nothing_left(FEATURES, named=3, with_node=2, by=[first, second]).endswith(
        f"requests {first}, {second}, 2 of them together with a node."
    )
    assert nothing_left(NODE, named=1, with_node=0, by=[]).endswith("names had already been deleted before a recovery.")
