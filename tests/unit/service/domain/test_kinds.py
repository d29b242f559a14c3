"""Every kind of request has its rules, and every manual list of kinds is complete."""

from typing import get_args, get_type_hints

import pytest
from pydantic import TypeAdapter

from lethe_client import LetheClient
from service.domain.kinds import DELETIONS, RULES, Names, Part, RequestKind, parts_of, removing
from service.requests.schemas import EXAMPLES, DeletionBody


def test_every_kind_has_rules_and_a_code_of_its_own() -> None:
    assert list(RULES) == list(RequestKind)
    assert len({kind.rules.tombstone_code for kind in DELETIONS}) == len(DELETIONS)
    assert {kind.rules.tombstone_code for kind in {*RequestKind} - {*DELETIONS}} == {None}


def test_the_codes_on_disk_stay_what_they_were() -> None:
    """Every model's tombstone record contains them."""
    codes = {kind: kind.rules.tombstone_code for kind in DELETIONS}
    assert codes == {RequestKind.NODE: 0, RequestKind.FEATURES: 1, RequestKind.EDGE: 2, RequestKind.LABEL: 3}


def test_every_part_is_taken_away_by_some_kind_and_no_kind_by_two() -> None:
    assert sorted(kind for part in Part for kind in removing(part)) == sorted(DELETIONS)
    assert (parts_of(Names.NODES), parts_of(Names.EDGES)) == ((Part.NODES, Part.FEATURES, Part.LABELS), (Part.EDGES,))


def test_the_client_takes_every_kind_that_the_interface_takes() -> None:
    taken = get_args(get_type_hints(LetheClient.request_deletion)["kind"])
    assert sorted(taken) == sorted(EXAMPLES)


def test_each_kind_takes_the_body_of_its_example() -> None:
    bodies = TypeAdapter[DeletionBody](DeletionBody)
    named = {RequestKind(kind): bodies.validate_python(EXAMPLES[kind]["value"]).named for kind in EXAMPLES}
    wanted = {Names.NODES: ["12", "57"], Names.EDGES: [("1", "2")]}
    assert named == {kind: wanted[kind.rules.names] for kind in named}


@pytest.mark.parametrize(
    ("kind", "nouns", "asked"),
    [
        (RequestKind.NODE, ("node", "nodes"), "2 nodes"),
        (RequestKind.EDGE, ("edge", "edges"), "2 edges"),
        (RequestKind.FEATURES, ("node's features", "nodes' features"), "the features of 2 nodes"),
        (RequestKind.LABEL, ("node's label", "nodes' labels"), "the labels of 2 nodes"),
        (RequestKind.ADDITION, ("new node or edge", "new nodes and edges"), "2 new nodes and edges"),
        (RequestKind.CORRECTION, ("corrected node", "corrected nodes"), "2 corrected nodes"),
    ],
)
def test_what_is_asked_for_is_said_in_the_singular_and_the_plural(
    kind: RequestKind, nouns: tuple[str, str], asked: str
) -> None:
    assert (kind.rules.noun(1), kind.rules.noun(2)) == nouns
    assert kind.rules.asked(2) == asked
