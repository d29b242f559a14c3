"""The attacker's access to a model: its answers."""

from typing import Protocol

from benchmarks.baselines.protocol import Array, Nodes


class BlackBox(Protocol):
    """A model that answers queries, locally or over the network."""

    def __call__(self, nodes: Nodes) -> Array:
        """Return class probabilities (m, C) float64 of `nodes` (m,) int64, with a row of zeros for a missing node."""


def recorded(answers: Array, decimals: int | None = None) -> BlackBox:
    """Wrap recorded answers (n, C), exact or rounded to `decimals` places."""
    rounded = answers if decimals is None else answers.round(decimals)
    return lambda nodes: rounded[nodes]
