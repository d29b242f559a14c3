"""What the unlearner tells those who answer predictions."""

from collections.abc import Sequence
from typing import Protocol

from service.domain.snapshot import Snapshot


class Readers(Protocol):
    """Every reader of one model; each call returns once none of them answers from anything older."""

    def load(
        self, node_ids: Sequence[str], class_names: Sequence[str], snapshot: Snapshot, *, public: frozenset[str]
    ) -> None:
        """A model has been loaded: answer from `snapshot`; the nodes with the ids `public` are never deleted."""

    def extend(self, until: float) -> None:
        """No other process writes the model before `until`, by `boottime()`: from then on answer nothing."""

    def publish(self, snapshot: Snapshot) -> None:
        """A new version is committed: answer from `snapshot` and forget the ids of nodes it no longer holds."""

    def suspend(self, reason: str) -> None:
        """It is not known which version is committed: answer nothing until `resume`."""

    def resume(self) -> None:
        """The committed version is the one published."""
