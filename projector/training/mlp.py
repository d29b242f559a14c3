"""The MLP extension: features Z = relu(relu(X W1) W2) from an MLP trained on public nodes only.

The paper's non-linear extension (its section on extensions) puts an MLP that never needs to forget in front of a linear
model that can. Z (n, width) replaces X (n, d) in everything that follows. Neither X nor W1 (d, width) and W2 (width,
width) are part of the model. Training adds an output layer W3 (width, C) on top, and drops it afterwards.

Only features and labels of public training nodes reach W1 and W2. Some of these nodes are held out to decide when to
stop. The labels of public nodes in the validation and test sets are not used.
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from projector.errors import GraphError, TrainingError
from projector.graph.features import FeatureMatrix, csr_tensor
from projector.graph.graph import Features, Graph, some
from projector.network.spec import ModelSpec

#: Share of the public training nodes held out for early stopping.
_HELD_OUT = 0.2
#: Epochs without a smaller held-out loss before training stops, and the largest number of epochs.
_PATIENCE = 50
_EPOCHS = 500
_BATCH_ROWS = 512
#: Adam's step size, and the weight of |W|^2 / 2. These and the dropout were chosen on Cora's validation nodes.
_LEARNING_RATE = 3e-3
_WEIGHT_DECAY = 5e-4
#: Share of inputs and hidden units dropped at random in each step.
_DROPOUT = 0.5
#: Units of Z that fewer than this share of the public training nodes activate are silenced. They would separate a
#: handful of nodes from all others, and force columns of Z to be rescaled. [Cora, 256 units: up to 7 such units and a
#: condition number of 2e4 to 7e4 with them, around 1e3 without; validation accuracy 2 points higher.]
_LEAST_ACTIVE = 0.01


@dataclass(frozen=True)
class MlpRecord:
    """The MLP whose outputs Z = relu(relu(X W1) W2) replaced the dataset's features.

    The model's features are Z: dense, a column per unit, one row per node. The model contains neither the dataset's own
    features nor W1 and W2.
    """

    #: Columns of Z.
    width: int
    #: Number of public nodes. The MLP was trained on no others, and they are never deleted.
    public_nodes: int


@dataclass(frozen=True)
class MlpProgress:
    """One epoch, for a progress bar."""

    #: 1 after the first.
    epoch: int
    #: Largest number of epochs; training may stop earlier.
    epochs: int
    #: Mean cross-entropy on the held-out public nodes.
    loss: float


@dataclass(frozen=True, eq=False)
class Mlp:
    """A trained feature extractor."""

    #: (d, width) and (width, width), float64.
    W1: Tensor
    W2: Tensor

    def outputs(self, features: Features) -> NDArray[np.float64]:
        """Return Z, (n, width), for X (n, d)."""
        hidden = FeatureMatrix(features, self.W1.device).matmul(self.W1).relu_()
        return np.asarray((hidden @ self.W2).relu_().numpy())


@dataclass(frozen=True, eq=False)
class Extracted:
    """A graph whose features an MLP has replaced."""

    #: Its features are Z, followed by the injected columns unchanged, in the order given.
    graph: Graph
    record: MlpRecord
    #: Messages for the operator.
    warnings: tuple[str, ...]


def public_nodes(spec: ModelSpec, graph: Graph, node_ids: Collection[str]) -> NDArray[np.bool_]:
    """Return the mask (n,) of the public nodes, checked before any work; empty unless `spec` has an MLP.

    Raises GraphError for unknown ids or nodes without a label. Raises TrainingError if an MLP would have no node to
    learn from, or if nodes are declared public without one.
    """
    if not spec.mlp_width:
        if node_ids:
            raise TrainingError(
                "Nodes are declared public, but the model has no MLP to train on them.",
                "Ask for one with --mlp WIDTH, or declare no node public.",
            )
        return np.zeros(graph.nodes, dtype=np.bool_)
    if not node_ids:
        raise TrainingError(
            "The MLP would have nothing to learn from: it is trained only on nodes declared public, and none is.",
            "Name them with --public FILE, one node id per line; they can never be deleted.",
        )
    rows = graph.node_ids.rows_of(node_ids)
    if (rows < 0).any():
        unknown = dict.fromkeys(name for name, row in zip(node_ids, rows, strict=True) if row < 0)
        raise GraphError(
            f"{len(unknown)} of the ids declared public belong to no node: {some(unknown)}.",
            "Give ids of nodes of this dataset, one per line.",
        )
    public = np.zeros(graph.nodes, dtype=np.bool_)
    public[rows] = True
    unlabelled = np.flatnonzero(public & (graph.labels < 0))
    if unlabelled.size:
        raise GraphError(
            f"{unlabelled.size} of the public nodes have no label: {some(graph.node_ids[row] for row in unlabelled)}.",
            "Declare nodes public that have one: the MLP is trained on their labels.",
        )
    if not (public & graph.train_mask).any():
        raise TrainingError(
            "None of the public nodes is a training node; the labels of validation and test nodes are never learnt.",
            "Declare some training nodes public.",
        )
    return public


def extract(
    graph: Graph,
    spec: ModelSpec,
    public: NDArray[np.bool_],
    injected: Sequence[int] = (),
    progress: Callable[[MlpProgress], None] | None = None,
) -> Extracted:
    """Train an MLP of width `spec.mlp_width` on the nodes of the mask `public` (n,) and replace X with Z.

    The columns `injected` bypass it, so that they can still be measured. Everything runs on the CPU, and the same
    inputs give the same bits. Raises TrainingError if training diverges or no unit is ever active.
    """
    own = np.setdiff1d(np.arange(graph.num_features), injected)
    features = graph.features[:, own] if injected else graph.features
    rows = np.flatnonzero(public & graph.train_mask)
    Z = train_mlp(features, graph.labels, rows, graph.num_classes, spec, progress).outputs(features)
    if not Z.any():
        raise TrainingError(
            "No unit of the MLP is active on any node, so its outputs carry no information.",
            "Declare more nodes public, choose a larger --mlp WIDTH or another --seed.",
        )
    carried = graph.features[:, list(injected)]
    carried = carried if isinstance(carried, np.ndarray) else carried.toarray()
    return Extracted(
        graph=replace(graph, features=np.hstack([Z, carried.astype(np.float64)]), columns=None),
        record=MlpRecord(width=spec.mlp_width, public_nodes=int(public.sum())),
        warnings=tuple(_warnings(graph, public)),
    )


def train_mlp(
    features: Features,
    labels: NDArray[np.int64],
    rows: NDArray[np.int64],
    classes: int,
    spec: ModelSpec,
    progress: Callable[[MlpProgress], None] | None = None,
) -> Mlp:
    """Return the MLP that best predicts `labels` (n,) of the nodes `rows` (m,), among those seen during training.

    A fifth of `rows`, drawn by `spec.seed`, is held out for early stopping. Units of Z that hardly any of `rows`
    activates are silenced: their columns of W2 are zero. Raises TrainingError if training diverges.
    """
    random = torch.Generator().manual_seed(spec.seed)
    drawn = rows[torch.randperm(rows.size, generator=random).numpy()]
    held_out, learnt = np.split(drawn, [math.ceil(_HELD_OUT * rows.size)])
    if learnt.size == 0:
        learnt = held_out
    y = torch.from_numpy(labels)
    width = spec.mlp_width
    shapes = ((features.shape[1], width), (width, width), (width, classes))
    W1, W2, W3 = (_initial(shape, random) for shape in shapes)
    adam = torch.optim.Adam([W1, W2, W3], lr=_LEARNING_RATE, weight_decay=_WEIGHT_DECAY)
    best, best_loss, best_epoch = Mlp(W1.detach().clone(), W2.detach().clone()), math.inf, 0
    for epoch in range(1, _EPOCHS + 1):
        order = learnt[torch.randperm(learnt.size, generator=random).numpy()]
        for batch in _batches(order):
            adam.zero_grad()
            hidden = _dropped(torch.relu(_rows(features, batch, random) @ W1), random)
            outputs = _dropped(torch.relu(hidden @ W2), random)
            cross_entropy(outputs @ W3, y[batch]).backward()  # type: ignore[no-untyped-call]
            adam.step()
        loss = _loss(features, y, held_out, (W1, W2, W3))
        if not math.isfinite(loss):
            raise TrainingError(
                f"The MLP diverged in epoch {epoch}.", "Scale the features so that most of them lie between -1 and 1."
            )
        if progress is not None:
            progress(MlpProgress(epoch, _EPOCHS, loss))
        if loss < best_loss:
            best, best_loss, best_epoch = Mlp(W1.detach().clone(), W2.detach().clone()), loss, epoch
        elif epoch - best_epoch >= _PATIENCE:
            break
    return _without_rare_units(best, features[rows])


def _without_rare_units(mlp: Mlp, features: Features) -> Mlp:
    active = (mlp.outputs(features) > 0).sum(axis=0)
    kept = active >= max(1, math.ceil(_LEAST_ACTIVE * features.shape[0]))
    return replace(mlp, W2=mlp.W2 * torch.from_numpy(kept))


def _initial(shape: tuple[int, int], random: torch.Generator) -> Tensor:
    """Return He's uniform initialisation, for layers before a relu."""
    bound = math.sqrt(6 / shape[0])
    return torch.empty(shape, dtype=torch.float64).uniform_(-bound, bound, generator=random).requires_grad_()


def _loss(features: Features, y: Tensor, rows: NDArray[np.int64], weights: tuple[Tensor, Tensor, Tensor]) -> float:
    """Return the mean cross-entropy of the whole network on `rows`, without dropout."""
    W1, W2, W3 = weights
    total = 0.0
    with torch.no_grad():
        for batch in _batches(rows):
            logits = torch.relu(torch.relu(_rows(features, batch) @ W1) @ W2) @ W3
            total += float(cross_entropy(logits, y[batch], reduction="sum"))
    return total / rows.size


def _batches(rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    for start in range(0, rows.size, _BATCH_ROWS):
        yield rows[start : start + _BATCH_ROWS]


def _rows(features: Features, rows: NDArray[np.int64], random: torch.Generator | None = None) -> Tensor:
    """Return X[rows] as float64, sparse if X is; with dropout if `random` is given."""
    chosen = features[rows]
    if isinstance(chosen, np.ndarray):
        dense = torch.from_numpy(chosen.astype(np.float64))
        return dense if random is None else _dropped(dense, random)
    values = torch.from_numpy(chosen.data.astype(np.float64))
    kept = (values if random is None else _dropped(values, random)).numpy()
    return csr_tensor(sp.csr_array((kept, chosen.indices, chosen.indptr), shape=chosen.shape), torch.device("cpu"))


def _dropped(values: Tensor, random: torch.Generator) -> Tensor:
    """Drop each value with probability `_DROPOUT` and scale up the others to keep the mean."""
    kept = torch.rand(values.shape, dtype=values.dtype, generator=random) >= _DROPOUT
    return values * kept / (1 - _DROPOUT)


def _warnings(graph: Graph, public: NDArray[np.bool_]) -> Iterator[str]:
    learnt = public & graph.train_mask
    absent = np.setdiff1d(np.arange(graph.num_classes), graph.labels[learnt])
    if absent.size:
        names = some(graph.class_names[label] for label in absent)
        yield f"No public training node has the class {names}; the MLP does not know it."
    unused = int((public & ~learnt).sum())
    if unused:
        yield (
            f"{unused} of the public nodes are not training nodes: they cannot be deleted either, but the MLP was not "
            "trained on them."
        )
