"""Requests without end of which no answer is read."""

import pytest

from tests.support.service.attacked import Attacked

pytestmark = pytest.mark.slow


def test_what_is_not_read_is_not_answered_ahead(attacked: Attacked) -> None:
    done: list[str] = []

    def look() -> None:
        attacked.ready()
        done.append(attacked.lethe.delete([str(len(done) + 1)]).status)

    grown = attacked.while_under("pipelining without reading", 20.0, look)

    assert set(done) == {"completed"}
    # Eight connections: each may hold 256 KiB unparsed, the requests of one piece, and a buffer of answers.
    assert grown < 50
    attacked.unharmed()
