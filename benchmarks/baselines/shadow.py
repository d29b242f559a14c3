"""ShaDow: classifies every node from a small graph of its own, for any number of layers.

Zeng et al., "Decoupling the Depth and Scope of Graph Neural Networks", NeurIPS 2021. EXTRACT(v, G) gives a connected
graph around v that does not depend on the number of layers L. The network's L layers run on it, and their output for v
is its representation. Here the extractor is their k-hop sampler: `depth` times from v, it draws at most `neighbours`
neighbours of each newly reached node, without replacement. The graph is induced by the reached nodes. torch-geometric's
`ShaDowKHopSampler` does the same, but needs a package without wheels.

The Projector paper trains its linear model this way, with L = 3, on ogbn-arxiv and ogbn-products; its code draws 20
neighbours to depth 2. Since the model is linear, the l-th block of v's row is c X, with c the row of v in P^l of its
own graph. So a sample is L + 1 sparse matrices, and the model on it is linear on given rows. The code draws every
training node again in each of 100 epochs; here three draws are made beforehand, and the weights fit the rows of all.
"""

import numpy as np
import scipy.sparse as sp

from benchmarks.baselines.protocol import Array, Nodes, accuracy
from projector import ModelSpec, from_arrays
from projector.graph.graph import Graph
from projector.network.spec import LossKind
from projector.training.fit import train

DEPTH, NEIGHBOURS, DRAWS = 2, 20, 3


def scope(graph: Graph, root: int, depth: int, neighbours: int, random: np.random.Generator) -> Nodes:
    """Return the nodes of `root`'s own graph, `root` first."""
    A, reached = graph.adjacency, {root: None}
    last = [root]
    for _ in range(depth):
        found: list[int] = []
        for node in last:
            around = A.indices[A.indptr[node] : A.indptr[node + 1]]
            if around.size > neighbours:
                around = random.choice(around, neighbours, replace=False)
            new = [each for each in around.tolist() if each not in reached]
            reached |= dict.fromkeys(new)
            found += new
        last = found
    return np.fromiter(reached, dtype=np.int64)


def sampled_hops(
    graph: Graph, roots: Nodes, hops: int, seed: int | tuple[int, int], depth: int = DEPTH, neighbours: int = NEIGHBOURS
) -> list[sp.csr_array]:
    """Return for l = 0 … `hops` the (m, n) matrix whose row i is that of `roots[i]` in P^l of its own graph.

    P is D^-1/2 (A + I) D^-1/2 with the degrees of that graph.
    """
    random = np.random.default_rng(seed)
    columns: list[Nodes] = []
    values: list[list[Array]] = [[] for _ in range(hops + 1)]
    for root in roots.tolist():
        nodes = scope(graph, root, depth, neighbours, random)
        A = graph.adjacency[nodes][:, nodes].toarray() + np.eye(nodes.size)
        scale = 1 / np.sqrt(A.sum(axis=1))
        P = A * scale * scale[:, None]
        row = np.zeros(nodes.size)
        row[0] = 1.0
        columns.append(nodes)
        for hop in range(hops + 1):
            values[hop].append(row)
            row = row @ P
    indptr = np.concatenate([[0], np.cumsum([each.size for each in columns])])
    indices, shape = np.concatenate(columns), (roots.size, graph.nodes)
    return [sp.csr_array((np.concatenate(each), indices, indptr), shape=shape) for each in values]


def shadow_accuracy(graph: Graph, hops: int, regularization: float, seed: int) -> float:
    """Return the test accuracy of one-against-rest on [X, C_1 X, …, C_L X], with the C_l as sampled.

    Trained to the optimum on the rows of the training nodes in `DRAWS` samples. Test nodes get rows from one.
    """
    training, test = np.flatnonzero(graph.train_mask), np.flatnonzero(graph.test_mask)
    X = graph.features.astype(np.float64)

    def rows(nodes: Nodes, draw: int) -> Array:
        blocks = (C @ X for C in sampled_hops(graph, nodes, hops, (seed, draw)))
        return np.concatenate([each if isinstance(each, np.ndarray) else each.toarray() for each in blocks], axis=1)

    H = np.concatenate([*(rows(training, draw) for draw in range(DRAWS)), rows(test, DRAWS)])
    labels = graph.labels[np.concatenate([*[training] * DRAWS, test])]
    tested = np.arange(labels.size) >= DRAWS * training.size
    sampled = from_arrays(np.empty((2, 0), dtype=np.int64), H, labels, train_mask=~tested)
    spec = ModelSpec(loss=LossKind.OVR, hops=0, regularization=regularization)
    return accuracy(train(spec, sampled).logits.numpy(), sampled, tested)
