"""GraphSAINT as the Projector paper runs it: GraphSAGE with three layers, trained on samples of random walks.

The paper takes the example of the Open Graph Benchmark for ogbn-products (`graph_saint.py`; `exp3_graphsaint.py` in the
authors' repository). A sample is the graph induced by the nodes on walks of three steps from 20,000 random roots, 0.8 %
of that graph's nodes; an epoch has 30 samples, and there are 20 epochs. The loss is the mean over the training nodes of
the sample, without GraphSAINT's normalisation (`sample_coverage=0`). Predictions use the whole graph. Here the roots
are the same share of the nodes, and training nodes that no sample holds have no loss.

As for the other networks here, Adam has a weight decay of 5e-4, where the example has none, and validation nodes judge
every epoch, where the example judges every second one from the tenth on.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, dropout, relu

from benchmarks.baselines.nonlinear import SETTINGS, Kind, Layers, Network, Sage, neighbours, tensors
from benchmarks.baselines.protocol import Nodes
from projector.graph.graph import NO_LABEL, Graph

#: Roots of a sample as a share of the nodes, steps of a walk, samples of an epoch, and epochs.
ROOTS, LENGTH, SAMPLES, EPOCHS = 20_000 / 2_449_029, 3, 30, 20


class ThreeLayers(Layers):
    """GraphSAGE with a layer between the other two."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__(Kind.SAGE, features, classes)
        hidden = SETTINGS[Kind.SAGE].hidden
        self.middle = Sage(hidden, hidden)

    def forward(self, x: Tensor, neighbours: Tensor) -> Tensor:
        """Return logits, (n, C), from the `tensors` of a graph for GraphSAGE."""
        for layer in (self.first, self.middle):
            x = dropout(relu(layer(x, neighbours)), self.share, self.training)
        found: Tensor = self.second(x, neighbours)
        return found


def walked(graph: Graph, roots: int, random: np.random.Generator) -> Nodes:
    """Return the nodes on walks from `roots` random nodes, ascending. A walk ends at a node without neighbours.

    No walk begins at a node without edges and label, such as a deleted one.
    """
    A = graph.adjacency
    degrees = np.diff(A.indptr)
    there = np.flatnonzero((degrees > 0) | (graph.labels != NO_LABEL))
    at = random.choice(there, roots)
    seen = [at]
    for _ in range(LENGTH):
        moves = at[degrees[at] > 0]
        at = A.indices[A.indptr[moves] + random.integers(degrees[moves])]
        seen.append(at)
    return np.unique(np.concatenate(seen)).astype(np.int64)


@dataclass(frozen=True)
class WalkedNetwork(Network):
    """GraphSAGE with three layers, trained on samples of random walks."""

    kind: Kind = Kind.SAGE
    epochs: int = EPOCHS

    def _layers(self, graph: Graph) -> Layers:
        return ThreeLayers(graph.num_features, graph.num_classes)

    def _losses(self, graph: Graph) -> Callable[[Layers], Iterator[Tensor]]:
        random, (x, _) = np.random.default_rng(self.seed), tensors(graph, self.kind)
        roots = max(1, round(ROOTS * graph.nodes))

        def sampled(layers: Layers) -> Iterator[Tensor]:
            for _ in range(SAMPLES):
                nodes = walked(graph, roots, random)
                inside = np.flatnonzero(graph.train_mask[nodes])
                if not inside.size:
                    continue
                around = neighbours(graph.adjacency[nodes][:, nodes], self.kind)
                logits = layers(x.index_select(0, torch.from_numpy(nodes)), around)
                labels = torch.from_numpy(graph.labels[nodes[inside]])
                yield cross_entropy(logits[torch.from_numpy(inside)], labels)

        return sampled
