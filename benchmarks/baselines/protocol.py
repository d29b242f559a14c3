"""The common interface of all methods, so that one experiment measures them all.

A `Baseline` is fitted to a graph and returns a `Trained`. Forgetting returns another `Trained` and leaves the first
unchanged. Features, labels, split and the class columns come from the graph, so they are the same for all. The linear
methods also share model, initialisation (zero) and loss through `ModelSpec`. Experiments use one lambda for all but
certified removal and ScaleGUN. The experiment `regularization` measures which lambda is best for each.
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
    """A baseline cannot run as requested."""


class Trained(Protocol):
    """A trained model that can forget; immutable."""

    @property
    def weights(self) -> Array | None:
        """W of the feature blocks, (blocks, d, C) float64; None for a model that is not linear in the features."""

    def predict(self) -> Array:
        """Return the class probabilities of every node of the remaining graph, (n, C); zeros for deleted nodes."""

    def predict_on(self, graph: Graph) -> Array | None:
        """Return the same for every node of another graph with these features; None with adaptive diffusion, whose hops
        belong to its own graph.
        """

    def unlearn(self, nodes: Nodes) -> "Trained":
        """Return the model without `nodes` (m,) int64, all of which are live."""


class Baseline(Protocol):
    """A method of training that allows nodes to be forgotten later."""

    def fit(self, graph: Graph) -> Trained:
        """Train on the training nodes of `graph`."""


def accuracy(probabilities: Array, graph: Graph, mask: NDArray[np.bool_]) -> float:
    """Return the share of the nodes in `mask` (n,) that are classified correctly."""
    right: NDArray[np.bool_] = probabilities.argmax(axis=1) == graph.labels
    return float(right[mask].mean())
