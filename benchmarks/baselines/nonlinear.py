"""Two-layer graph neural networks, retrained: GCN, GraphSAGE, GAT and APPNP by torch-geometric.

The references of the paper's Tables 2 and 4, after torch-geometric's examples, as its appendix says ("Details on
multi-layer GNNs"): `gcn.py` and `gat.py`, `reddit.py` for GraphSAGE, `benchmark/citation/appnp.py`. The changes make
the training alike for all. Rows are not divided by their sums. Training takes 200 epochs of the whole graph, where
`reddit.py` has ten of batches. Weight decay applies to every layer, where `reddit.py` has none and `gcn.py` none on the
second layer. GCN drops no features and has 64 hidden units, as APPNP does. The example's 16 are for Planetoid's sparse
rows; on Amazon Photo two of the 16 stayed active, and the network classified 39 % of the test nodes.

* GCN (Kipf and Welling, 2017, Eq. 9): P relu(P X W_1 + b_1) W_2 + b_2 with P = D^-1/2 (A + I) D^-1/2.
* GraphSAGE (Hamilton et al., 2017, Algorithm 1, mean aggregator): x_i W_r + mean_j x_j W_l + b in each layer, W_r and
  W_l the halves of the paper's matrix, over all neighbours rather than a sample, and without its normalisation of rows.
* GAT (Velickovic et al., 2018, Eq. 3 to 6): weights softmax_j leaky_relu(a . [W x_i, W x_j]) over the neighbours and i
  itself, eight heads side by side and then one.
* APPNP (Klicpera et al., 2019, Eq. 4): Z <- (1 - 0.1) P Z + 0.1 H ten times, H of a multilayer perceptron.

Adam trains on the whole graph in single precision. The epoch that classifies validation nodes best is kept (for a
shard, among every tenth), or the last one without validation nodes. Features that are mostly zeros stay sparse: the
products are the same, and dropping zeros changes nothing.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout, elu, relu

from benchmarks.baselines.linear import remaining, without_nodes
from benchmarks.baselines.protocol import Array, Nodes
from projector.graph.features import csr_of
from projector.graph.graph import Graph


class Kind(StrEnum):
    """Network architecture."""

    GCN = "gcn"
    SAGE = "sage"
    GAT = "gat"
    APPNP = "appnp"


@dataclass(frozen=True)
class Settings:
    """How a network is built and trained."""

    hidden: int
    dropout: float
    learning_rate: float
    #: Weight decay of Adam.
    decay: float


SETTINGS = {
    Kind.GCN: Settings(hidden=64, dropout=0.5, learning_rate=0.01, decay=5e-4),
    Kind.SAGE: Settings(hidden=256, dropout=0.5, learning_rate=0.01, decay=5e-4),
    Kind.GAT: Settings(hidden=8, dropout=0.6, learning_rate=0.005, decay=5e-4),
    Kind.APPNP: Settings(hidden=64, dropout=0.5, learning_rate=0.01, decay=5e-4),
}
_HEADS = 8
#: A shard's network is evaluated every so many epochs, since the whole graph takes longer than the shard's own step.
_JUDGED = 10
#: Maximum share of nonzero entries at which features stay sparse.
_SPARSE = 0.05


class Sage(nn.Module):
    """A layer of GraphSAGE: the mean of products rather than the product of means, since x may be sparse or wide."""

    def __init__(self, features: int, units: int) -> None:
        super().__init__()
        self.lin_l, self.lin_r = nn.Linear(features, units), nn.Linear(features, units, bias=False)

    def forward(self, x: Tensor, mean: Tensor) -> Tensor:
        """Return (n, units) from x (n, features) and the matrix (n, n) that averages over neighbours."""
        # The layout is by columns: a sparse product with a transposed view takes three times as long.
        around, itself = (x @ layer.weight.t().contiguous() for layer in (self.lin_l, self.lin_r))
        return mean @ around + itself + self.lin_l.bias


class Layers(nn.Module):
    """Two layers and the activation between them."""

    def __init__(self, kind: Kind, features: int, classes: int) -> None:
        # Its import takes seconds, and most who import this module train no network.
        from torch_geometric.nn import APPNP, GATConv, GCNConv

        super().__init__()
        hidden, self.share = SETTINGS[kind].hidden, SETTINGS[kind].dropout
        self.kind = kind
        self.first: Any
        self.second: Any
        self.between: Callable[[Tensor], Tensor] = elu if kind is Kind.GAT else relu
        if kind is Kind.APPNP:
            self.first, self.second = nn.Linear(features, hidden), nn.Linear(hidden, classes)
            self.spread = APPNP(K=10, alpha=0.1, normalize=False)
        elif kind is Kind.GAT:
            self.first = GATConv(features, hidden, heads=_HEADS, dropout=self.share)
            self.second = GATConv(hidden * _HEADS, classes, heads=1, concat=False, dropout=self.share)
        elif kind is Kind.SAGE:
            self.first, self.second = Sage(features, hidden), Sage(hidden, classes)
        else:
            self.first = GCNConv(features, hidden, normalize=False)
            self.second = GCNConv(hidden, classes, normalize=False)

    def forward(self, x: Tensor, neighbours: Tensor) -> Tensor:
        """Return logits, (n, C), from the `tensors` of a graph for this kind."""
        given = () if self.kind is Kind.APPNP else (neighbours,)
        # GAT and APPNP drop features as well as hidden units.
        if self.kind in (Kind.GAT, Kind.APPNP):
            x = dropped(x, self.share) if self.training else x
        x = dropout(self.between(self.first(x, *given)), self.share, self.training)
        found: Tensor = self.second(x, *given)
        return self.spread(found, neighbours) if self.kind is Kind.APPNP else found


@dataclass(frozen=True, eq=False)
class TrainedNetwork:
    """A network on the remaining graph."""

    settings: "Network"
    graph: Graph
    live: NDArray[np.bool_]
    layers: Layers

    @property
    def weights(self) -> None:
        """None: the network is not linear in the features."""
        return

    def predict(self) -> Array:
        """As `Trained.predict`."""
        return np.where(self.live[:, None], self.predict_on(self.graph), 0.0)

    def predict_on(self, graph: Graph) -> Array:
        """Class probabilities of every node of another graph with the same features, (n, C)."""
        return torch.softmax(self.logits_on(graph), dim=1).numpy().astype(np.float64)

    def logits_on(self, graph: Graph) -> Tensor:
        """Logits of every node of `graph`, (n, C) float32."""
        with torch.no_grad():
            found: Tensor = self.layers.eval()(*tensors(graph, self.layers.kind))
            return found

    def unlearn(self, nodes: Nodes) -> "TrainedNetwork":
        """Retrain without `nodes`, from the same seed."""
        live = without_nodes(self.live, nodes)
        found = self.settings.fit(remaining(self.graph, nodes))
        return TrainedNetwork(self.settings, found.graph, live, found.layers)


@dataclass(frozen=True)
class Network:
    """Forgets by retraining. `seed` draws the initial weights and the dropout."""

    kind: Kind
    seed: int = 0
    epochs: int = 200

    def fit(self, graph: Graph, whole: Graph | None = None) -> TrainedNetwork:
        """As `Baseline.fit`. A shard's epoch, among every tenth, is chosen by validation nodes of the `whole` graph.

        With fewer than ten epochs it is the last.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            layers = self._trained(graph, whole)
        return TrainedNetwork(self, graph, np.ones(graph.nodes, dtype=np.bool_), layers)

    def _trained(self, graph: Graph, whole: Graph | None) -> Layers:
        judge, every = (graph, 1) if whole is None else (whole, _JUDGED)
        settings, given, y = SETTINGS[self.kind], tensors(judge, self.kind), torch.from_numpy(judge.labels)
        validation, losses = torch.from_numpy(judge.val_mask), self._losses(graph)
        layers = self._layers(graph)
        adam = torch.optim.Adam(layers.parameters(), settings.learning_rate, weight_decay=settings.decay)
        best, kept = -1, layers.state_dict()
        for epoch in range(1, self.epochs + 1):
            layers.train()
            for loss in losses(layers):
                adam.zero_grad()
                torch.autograd.backward(loss)
                adam.step()
            if judge.val_mask.any() and epoch % every == 0:
                with torch.no_grad():
                    right = int((layers.eval()(*given).argmax(dim=1) == y)[validation].sum())
                if right > best:
                    best, kept = right, copy.deepcopy(layers.state_dict())
        if judge.val_mask.any():
            layers.load_state_dict(kept)
        return layers

    def _layers(self, graph: Graph) -> Layers:
        return Layers(self.kind, graph.num_features, graph.num_classes)

    def _losses(self, graph: Graph) -> Callable[[Layers], Iterator[Tensor]]:
        """Return a function that yields the losses of one epoch, each with the weights after the step before."""
        given, y = tensors(graph, self.kind), torch.from_numpy(graph.labels)
        training = torch.from_numpy(graph.train_mask)

        def whole(layers: Layers) -> Iterator[Tensor]:
            yield cross_entropy(layers(*given)[training], y[training])

        return whole


def tensors(graph: Graph, kind: Kind) -> tuple[Tensor, Tensor]:
    """Return features (n, d) float32, sparse if most are zero, and the neighbours.

    For GAT the neighbours are edges (2, E) int64 in both directions. For the others they are the propagation matrix (n,
    n), float32 in CSR: D^-1 A for GraphSAGE, else D^-1/2 (A + I) D^-1/2.
    """
    features = graph.features if isinstance(graph.features, np.ndarray) else graph.features.toarray()
    x = torch.from_numpy(np.asarray(features, dtype=np.float32))
    sparse = np.count_nonzero(features) <= _SPARSE * features.size
    return x.to_sparse() if sparse else x, neighbours(graph.adjacency, kind)


def neighbours(A: sp.csr_array, kind: Kind) -> Tensor:
    """Return the neighbours of `tensors` for the adjacency A (n, n)."""
    if kind is Kind.GAT:
        return torch.from_numpy(np.stack(A.nonzero()).astype(np.int64))
    if kind is Kind.SAGE:
        P = sp.diags_array(1 / np.maximum(A.sum(axis=1), 1)) @ A
    else:
        root = sp.diags_array((A.sum(axis=1) + 1) ** -0.5)
        P = root @ (A + sp.eye_array(A.shape[0])) @ root
    P = sp.csr_array(P)
    indptr, indices = (torch.from_numpy(each.astype(np.int64)) for each in (P.indptr, P.indices))
    return csr_of(indptr, indices, torch.from_numpy(P.data.astype(np.float32)), P.shape)


def dropped(x: Tensor, share: float) -> Tensor:
    """Apply dropout to `x`, dense or sparse, in training: zero each entry with probability `share` and scale the
    others.
    """
    if not x.is_sparse:
        return dropout(x, share)
    kept = dropout(x.values(), share)
    return torch.sparse_coo_tensor(x.indices(), kept, x.shape, is_coalesced=True, check_invariants=False)
