"""What every way of forgetting has in common, so that one experiment measures them all.

A `Baseline` is fitted to a graph and gives a `Trained`; that forgets nodes and gives another, and leaves the one before
as it was. Features, labels, split and the columns of the classes are the graph's, so they are the same for all; the
linear ones also share model, initialisation (zero) and loss through `ModelSpec`. Experiments take one lambda for
all but certified removal and ScaleGUN; at which of several each is best is an experiment of its own, `regularization`.
"""

from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from projector import ProjectorError
from projector.graph.graph import Graph

Array: TypeAlias = NDArray[np.float64]
Nodes: TypeAlias = NDArray[np.int64]

#: The lambdas that are tried; the paper's is the smallest.
LAMBDAS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)


class BaselineError(ProjectorError):
    """A baseline that cannot be run as asked."""


class Trained(Protocol):
    """A trained model that can forget; immutable."""

    @property
    def weights(self) -> Array | None:
        """W of the feature blocks, (blocks, d, C) float64; None for a model that is not linear in the features."""

    def predict(self) -> Array:
        """Class probabilities of every node on the remaining graph, (n, C) float64; zero rows for deleted nodes."""

    def predict_on(self, graph: Graph) -> Array | None:
        """The same of every node of another graph with these features; None with adaptive diffusion, whose hops are
        of its own graph."""

    def unlearn(self, nodes: Nodes) -> "Trained":
        """The model without `nodes` (m,) int64, all of which are still there."""


class Baseline(Protocol):
    """A way to train so that nodes can be forgotten later."""

    def fit(self, graph: Graph) -> Trained:
        """Trained on the training nodes of `graph`."""


def accuracy(probabilities: Array, graph: Graph, mask: NDArray[np.bool_]) -> float:
    """Share of the nodes in `mask` (n,) that are classified rightly."""
    right: NDArray[np.bool_] = probabilities.argmax(axis=1) == graph.labels
    return float(right[mask].mean())
