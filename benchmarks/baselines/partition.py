"""GraphEraser's partition of a training graph into shards of about the same size (Chen et al., CCS 2022).

* BLPA, their Algorithm 1: balanced label propagation. A reassignment profile (v, shard, number of v's neighbours in it)
  exists for every node and each shard with neighbours of it. In descending order of that number, a node goes to the
  first of its shards with room. Their code keeps one profile a node, of its most frequent shard, and queues nodes
  behind full shards. This module follows the text, since "as published" is the paper, against which shards can be
  checked.
* BEKM, their Algorithm 2: balanced k-means of node embeddings. In ascending order of the squared distance of all pairs
  of node and centroid, a node goes to the first centroid with room. Text and code agree. Embeddings are the outputs of
  a GraphSAGE trained on the same nodes, as in their code.
* METIS, which the Projector paper uses, by pymetis.
* At random, as SISA cuts independent rows (Bourtoule et al., 2021) and GraphEraser does for comparison.

A shard holds at most ceil(n/k + 0.005 (n - n/k)) nodes (the code's `shard_size_delta`). The shards do not change when
nodes are deleted, as published, so the cut of the other nodes still depends on the deleted ones.
"""

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pymetis
import scipy.sparse as sp

from benchmarks.baselines.nonlinear import Kind, Network
from benchmarks.baselines.protocol import Array, Nodes
from projector.graph.graph import Graph

#: Maps a graph, a number of shards and a seed to the shard of every node, (n,).
Partition: TypeAlias = Callable[[Graph, int, int], Nodes]

_SLACK = 0.005
#: A stream for the draws here: the experiments draw the deleted nodes among the same nodes, from the stream of `seed`.
_STREAM = 1
_BLPA_ROUNDS, _BEKM_ROUNDS = 100, 20
#: Epochs of the GraphSAGE that embeds, as in their code.
_EPOCHS = 100


def blpa(graph: Graph, shards: int, seed: int) -> Nodes:
    """Partition by balanced label propagation from a random start."""
    start = at_random(graph, shards, seed)
    return propagate_labels(graph.adjacency, start, shards, capacity(graph.nodes, shards), _BLPA_ROUNDS)


def bekm(graph: Graph, shards: int, seed: int) -> Nodes:
    """Partition by balanced k-means of the outputs of a GraphSAGE trained on `graph`."""
    embeddings = Network(Kind.SAGE, seed, _EPOCHS).fit(graph).logits_on(graph).numpy().astype(np.float64)
    first = np.random.default_rng((seed, _STREAM)).choice(graph.nodes, size=shards, replace=False)
    return balanced_k_means(embeddings, embeddings[first], capacity(graph.nodes, shards), _BEKM_ROUNDS)


def metis(graph: Graph, shards: int, seed: int) -> Nodes:
    """Partition by METIS, which cuts few edges. Its own `seed` is the only randomness."""
    structure = pymetis.CSRAdjacency(graph.adjacency.indptr, graph.adjacency.indices)
    _, found = pymetis.part_graph(shards, adjacency=structure, options=pymetis.Options(seed=seed))
    return np.asarray(found, dtype=np.int64)


def at_random(graph: Graph, shards: int, seed: int) -> Nodes:
    """Partition uniformly, into shards whose sizes differ by at most one."""
    found = np.empty(graph.nodes, dtype=np.int64)
    for shard, nodes in enumerate(
        np.array_split(np.random.default_rng((seed, _STREAM)).permutation(graph.nodes), shards)
    ):
        found[nodes] = shard
    return found


def capacity(nodes: int, shards: int) -> int:
    """Return the maximum number of nodes in a shard."""
    return math.ceil(nodes / shards + _SLACK * (nodes - nodes / shards))


def propagate_labels(adjacency: sp.csr_array, start: Nodes, shards: int, capacity: int, rounds: int) -> Nodes:
    """Run Algorithm 1 from the shards `start` (n,), until nothing moves or for `rounds`."""
    shard = start.copy()
    sizes = np.bincount(shard, minlength=shards)
    every = np.arange(shard.size)
    for _ in range(rounds):
        membership = sp.csr_array((np.ones(shard.size), (every, shard)), shape=(shard.size, shards))
        profiles = sp.coo_array(adjacency @ membership)
        # Equal numbers of neighbours are ordered by node, then shard.
        order = np.lexsort((profiles.col, profiles.row, -profiles.data))
        settled = np.zeros(shard.size, dtype=np.bool_)
        before = shard.copy()
        for node, target in zip(profiles.row[order].tolist(), profiles.col[order].tolist(), strict=True):
            if settled[node]:
                continue
            if target == shard[node]:
                settled[node] = True
            elif sizes[target] < capacity:
                sizes[shard[node]] -= 1
                sizes[target] += 1
                shard[node] = target
                settled[node] = True
        if np.array_equal(before, shard):
            break
    return shard


def balanced_k_means(points: Array, centroids: Array, capacity: int, rounds: int) -> Nodes:
    """Run Algorithm 2 on points (n, e) from centroids (k, e), until the centroids stay or for `rounds`."""
    shard = np.full(len(points), -1, dtype=np.int64)
    for _ in range(rounds):
        distances = ((points[:, None, :] - centroids[None, :, :]) ** 2).sum(axis=2)
        nodes, targets = np.unravel_index(np.argsort(distances, axis=None, kind="stable"), distances.shape)
        shard = np.full(len(points), -1, dtype=np.int64)
        sizes = np.zeros(len(centroids), dtype=np.int64)
        for node, target in zip(nodes.tolist(), targets.tolist(), strict=True):
            if shard[node] < 0 and sizes[target] < capacity:
                shard[node] = target
                sizes[target] += 1
        # A centroid without nodes stays in place.
        moved = np.stack([points[shard == k].mean(axis=0) if sizes[k] else each for k, each in enumerate(centroids)])
        if np.array_equal(moved, centroids):
            break
        centroids = moved
    return shard
