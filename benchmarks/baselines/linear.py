"""The linear graph neural network from outside `projector`: its rows, logits and answers.

`projector` trains the model and forgets from it. Second-order baselines need the rows of H = P^L X (or [X, PX, …, P^L
X]) that the model was trained on, before and after a deletion. All baselines need predictions from their own weights.
"""

from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator

from benchmarks.baselines.protocol import Array, BaselineError, Nodes
from projector import ModelSpec
from projector.graph.graph import NO_LABEL, Graph
from projector.network.losses import UNFITTED_TEMPERATURE
from projector.network.spec import LossKind, PropagationKind
from projector.training.fit import train

#: Minimum of rows and columns above which second-order methods do not form H from sparse features. [A deletion by
#: Influence+ takes a fifth of the time of a Cholesky factor on Cora, 1,208 x 1,433, and a seventh on Citeseer.]
_LARGE = 1_000
#: Weights of trained models. Weak keys, so that they go with their graph.
_FITTED: WeakKeyDictionary[Graph, dict[ModelSpec, Array]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class LinearModel:
    """Weights on a graph after some deletions; every linear baseline predicts with it."""

    #: The remaining graph. Deleted nodes keep their rows, without edges, features, label or place in the split.
    graph: Graph
    spec: ModelSpec
    #: Nodes that have not been deleted, (n,).
    live: NDArray[np.bool_]
    #: W, (blocks, d, C) float64.
    weights: Array

    def predict(self) -> Array:
        """As `Trained.predict`."""
        return np.where(self.live[:, None], self.predict_on(self.graph), 0.0)

    def predict_on(self, graph: Graph) -> Array:
        """Class probabilities of every node of another graph with the same features, (n, C)."""
        return probabilities(logits(graph, self.spec, self.weights), self.spec.loss)


def train_linear(graph: Graph, spec: ModelSpec) -> LinearModel:
    """Return the optimum on the training nodes of `graph`, trained from zero.

    Uses `train`, since `projector.fit` also factorises the Gram matrix for later deletions. The two differ if `fit`
    rescales badly scaled columns, which happens for none of the datasets here. Raises BaselineError if the model has
    more than blocks of propagated features.
    """
    check_linear(spec)
    weights = train(spec, graph).weights.numpy()
    return LinearModel(graph, spec, np.ones(graph.nodes, dtype=np.bool_), weights)


def fitted(graph: Graph, spec: ModelSpec) -> LinearModel:
    """Return what `train_linear` does, trained once for each graph and spec. Timed deletions train on new graphs."""
    found = _FITTED.setdefault(graph, {})
    if spec not in found:
        found[spec] = train_linear(graph, spec).weights
    return LinearModel(graph, spec, np.ones(graph.nodes, dtype=np.bool_), found[spec])


def check_linear(spec: ModelSpec) -> None:
    """Raise BaselineError if the model has more than blocks of propagated features."""
    if spec.label_hops or spec.diffusion or spec.mlp_width:
        raise BaselineError(
            "Baselines are compared on blocks of propagated features.", "Leave out label reuse, diffusion and the MLP."
        )


def remaining(graph: Graph, nodes: Nodes) -> Graph:
    """Return `graph` without `nodes` (m,): they keep rows without edges, features, label or place in the split."""
    kept = np.ones(graph.nodes)
    kept[nodes] = 0.0
    keep = sp.diags_array(kept)
    adjacency = sp.csr_array(keep @ graph.adjacency @ keep)
    adjacency.eliminate_zeros()
    adjacency.sort_indices()
    if isinstance(graph.features, np.ndarray):
        features = graph.features * kept.astype(graph.features.dtype)[:, None]
    else:
        features = sp.csr_array(sp.diags_array(kept.astype(graph.features.dtype)) @ graph.features)
        features.eliminate_zeros()
        features.sort_indices()
    there = kept > 0
    return replace(
        graph,
        adjacency=adjacency,
        features=features,
        labels=np.where(there, graph.labels, NO_LABEL),
        train_mask=graph.train_mask & there,
        val_mask=graph.val_mask & there,
        test_mask=graph.test_mask & there,
    )


def without_nodes(live: NDArray[np.bool_], nodes: Nodes) -> NDArray[np.bool_]:
    """Return `live` (n,) without `nodes` (m,). Raises BaselineError for a node already deleted or named twice."""
    if not live[nodes].all() or np.unique(nodes).size != nodes.size:
        raise BaselineError("A node was deleted before, or is named twice.", "Name live nodes, each once.")
    left = live.copy()
    left[nodes] = False
    return left


def propagation(graph: Graph, spec: ModelSpec) -> sp.csr_array:
    """Return P, (n, n): D^-1/2 (A + sI) D^-1/2 or D^-1 (A + sI), D the degrees of A + sI; zero rows for degree 0."""
    looped = graph.adjacency + spec.self_loops * sp.eye_array(graph.nodes, format="csr")
    degrees = np.asarray(looped.sum(axis=1)).ravel()
    inverse = np.divide(1.0, degrees, out=np.zeros_like(degrees), where=degrees > 0)
    if spec.propagation is PropagationKind.ROW:
        return sp.csr_array(sp.diags_array(inverse) @ looped)
    root = sp.diags_array(np.sqrt(inverse))
    return sp.csr_array(root @ looped @ root)


def representation(graph: Graph, spec: ModelSpec, rows: Nodes) -> Array:
    """Return H[rows], (m, p) float64: the blocks P^l X side by side, in the order of the blocks of W."""
    P, block = propagation(graph, spec), _float64(graph)
    blocks = []
    for hop in range(spec.hops + 1):
        if hop:
            block = P @ block
        if hop in spec.block_hops:
            chosen = block[rows]
            blocks.append(chosen if isinstance(chosen, np.ndarray) else chosen.toarray())
    return np.concatenate(blocks, axis=1)


def design(graph: Graph, spec: ModelSpec, rows: Nodes) -> Array | LinearOperator:
    """Return H[rows], (m, p), for second-order methods: formed, or as an operator if that is faster."""
    formed = isinstance(graph.features, np.ndarray)
    if formed or min(rows.size, len(spec.block_hops) * graph.num_features) < _LARGE:
        return representation(graph, spec, rows)
    return representation_operator(graph, spec, rows)


def representation_operator(graph: Graph, spec: ModelSpec, rows: Nodes) -> LinearOperator:
    """Return H[rows], (m, p), as the operator S [P^l X, side by side], without forming it."""
    P, X = propagation(graph, spec), _float64(graph)
    P_t, X_t = P.T.tocsr(), X.T if isinstance(X, np.ndarray) else X.T.tocsr()

    def product(w: Array) -> Array:
        return _product(P, X, spec, w.reshape(len(spec.block_hops), -1))[rows]

    def transposed(v: Array) -> Array:
        found, blocks = np.zeros(graph.nodes), []
        found[rows] = v.ravel()
        for hop in range(spec.hops + 1):
            if hop:
                found = P_t @ found
            if hop in spec.block_hops:
                blocks.append(X_t @ found)
        return np.concatenate(blocks)

    shape = rows.size, len(spec.block_hops) * graph.num_features
    return LinearOperator(shape, matvec=product, rmatvec=transposed, dtype=np.float64)


def logits(graph: Graph, spec: ModelSpec, weights: Array) -> Array:
    """Return H W of every node, (n, C) float64, for `weights` (blocks, d, C), propagating C columns."""
    return _product(propagation(graph, spec), _float64(graph), spec, weights)


def probabilities(logits: Array, loss: LossKind) -> Array:
    """Return the answers of `Model.predict` for logits (n, C): a softmax, for `ovr` of the logarithms of the sigmoids.

    The squared loss uses the default temperature for models without a fitted one.
    """
    scores = -np.logaddexp(0.0, -logits) if loss is LossKind.OVR else logits
    if loss is LossKind.SQUARED:
        scores = logits / UNFITTED_TEMPERATURE
    raised = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True))


def within_hops(graph: Graph, nodes: Nodes, hops: int) -> NDArray[np.bool_]:
    """Return a mask of the nodes at most `hops` edges away from one of `nodes`, including these, (n,) bool."""
    reached = np.zeros(graph.nodes)
    reached[nodes] = 1.0
    for _ in range(hops):
        reached = np.minimum(reached + graph.adjacency @ reached, 1.0)
    return reached > 0


def stacked(weights: Array) -> Array:
    """Reshape (blocks, d, C) to (p, C)."""
    return weights.reshape(-1, weights.shape[2])


def blocks_of(W: Array, spec: ModelSpec) -> Array:
    """Reshape (p, C) to (blocks, d, C)."""
    return W.reshape(len(spec.block_hops), -1, W.shape[1])


def _product(P: sp.csr_array, X: Array | sp.csr_array, spec: ModelSpec, weights: Array) -> Array:
    """Return H of every node times `weights` (blocks, d) or (blocks, d, C): (n,) or (n, C), by Horner's rule."""
    found = np.zeros((P.shape[0], *weights.shape[2:]))
    for hop in range(spec.hops, -1, -1):
        if hop in spec.block_hops:
            found += X @ weights[spec.block_hops.index(hop)]
        if hop:
            found = P @ found
    return found


def _float64(graph: Graph) -> Array | sp.csr_array:
    return graph.features.astype(np.float64)
