"""Small models in the form that the Gram factors take for wide sparse features."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch


@contextmanager
def through_rows(forced: bool = True) -> Iterator[None]:
    """If `forced`, all factors made in the block have M through the rows and an M+ with rows that are added later."""
    if not forced:
        yield
        return
    with patch("projector.forgetting.gram.goes_through_rows", lambda _: True):
        yield
