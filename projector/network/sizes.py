"""The dimensions that determine a model's costs, known before any work starts."""

from dataclasses import dataclass

import numpy as np

from projector.graph.graph import Graph
from projector.network.spec import ModelSpec


@dataclass(frozen=True)
class Sizes:
    """The dimensions that come from the graph; the specification supplies the others."""

    nodes: int
    #: Undirected edges.
    edges: int
    #: Columns of the graph's features.
    features: int
    classes: int
    #: Training nodes, n_train.
    training: int
    #: Stored feature values: nodes * features if dense, fewer for CSR.
    stored_values: int
    sparse: bool
    #: Whether edges have weights.
    weighted: bool = False
    #: Bytes of a stored feature value, 4 or 8.
    value_bytes: int = 4

    @classmethod
    def of(cls, graph: Graph) -> "Sizes":
        """Return the sizes of a graph's model."""
        dense = isinstance(graph.features, np.ndarray)
        stored = graph.features.size if isinstance(graph.features, np.ndarray) else graph.features.nnz
        training = int(graph.train_mask.sum())
        return cls(
            graph.nodes, graph.edges, graph.num_features, graph.num_classes, training, int(stored),
            sparse=not dense, weighted=graph.weighted, value_bytes=graph.features.dtype.itemsize,
        )  # fmt: skip

    def width(self, spec: ModelSpec) -> int:
        """Return d, the columns of the input whose span counts: the features, or the MLP's outputs."""
        return spec.mlp_width or self.features

    def rows_of_weights(self, spec: ModelSpec) -> int:
        """Return p, the columns of H and rows of W."""
        return len(spec.block_hops) * self.width(spec) + spec.label_hops * self.classes
