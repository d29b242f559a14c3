"""The one rule for ids: every id that training accepts can be named in a request."""

import pytest
from pydantic import TypeAdapter

from projector.graph.node_ids import MAX_CHARACTERS, is_allowed
from service.domain.fields import NodeId

ALLOWED = ["1", "a b", "/../", "Zoë 🙂", "a" * MAX_CHARACTERS]
REFUSED = ["", "a" * (MAX_CHARACTERS + 1), "a\n", "\r", "a\x00", "\x7f", "\x85", "\u2028", "\ud800", " a", "a\u3000"]


@pytest.mark.parametrize("name", ALLOWED)
def test_an_id_that_training_accepts_can_be_named_in_a_request(name: str) -> None:
    assert is_allowed(name)
    assert TypeAdapter(NodeId).validate_python(name) == name


@pytest.mark.parametrize("name", REFUSED, ids=ascii)
def test_an_id_that_could_not_be_named_is_refused(name: str) -> None:
    assert not is_allowed(name)
