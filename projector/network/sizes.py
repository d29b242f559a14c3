"""The dimensions of a model that its costs depend on, known before any work is done."""

from dataclasses import dataclass

import numpy as np

from projector.graph.graph import Graph
from projector.network.spec import ModelSpec


@dataclass(frozen=True)
class Sizes:
    """What a graph brings to them; a specification does the rest."""

    nodes: int
    #: Undirected.
    edges: int
    #: Columns of the graph's features.
    features: int
    classes: int
    #: Training nodes, n_train.
    training: int
    #: Values of the features that are stored: nodes * features when dense, fewer when CSR.
    stored_values: int
    sparse: bool

    @classmethod
    def of(cls, graph: Graph) -> "Sizes":
        """Those of a graph's model."""
        dense = isinstance(graph.features, np.ndarray)
        stored = graph.features.size if isinstance(graph.features, np.ndarray) else graph.features.nnz
        training = int(graph.train_mask.sum())
        return cls(
            graph.nodes, graph.edges, graph.num_features, graph.num_classes, training, int(stored), sparse=not dense
        )

    def width(self, spec: ModelSpec) -> int:
        """d, the columns of the input whose span counts: the features, or what the MLP makes of them."""
        return spec.mlp_width or self.features

    def rows_of_weights(self, spec: ModelSpec) -> int:
        """p, the columns of H and rows of W."""
        return len(spec.block_hops) * self.width(spec) + spec.label_hops * self.classes
