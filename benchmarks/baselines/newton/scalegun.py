"""ScaleGUN's lazy local propagation: rows of H kept up to a residue, and updated where a deletion touches them.

Yi and Wei, "Scalable and Certifiable Graph Unlearning: Overcoming the Approximation Error Barrier", ICLR 2025. With t_0
= D^1/2 X and t_k = A D^-1 t_(k-1), the blocks of H are P^k X = D^-1/2 t_k. For each t_k the method stores a reserve q_k
and a residue r_k that was not propagated further, with

    q_0 + r_0 = D^1/2 X,    q_k + r_k = A D^-1 q_(k-1).

A push moves an entry of r_k larger than `residue` to q_k and its shares to the neighbours' r_(k+1). When edges are
removed, the reserves of nodes that lost edges are scaled with their degrees, so that their contributions to each
neighbour stay the same. Only these nodes' residues are then wrong. The two equations correct them before the next push.

The removal itself is that of `certified_removal`, with these rows and their possible error in the gradient. With e_k =
t_k - q_k, e_k = r_k + A D^-1 e_(k-1). D^-1/2 A D^-1/2 has norm 1 at most, so the error of block k is at most sum_(j <=
k) |D^-1/2 r_j|, which never exceeds the paper's sqrt(n) L residue for a column (its lemma for the embedding). The code
here uses the sum of the stored residues, as the authors' code does, since it is far smaller. Its part in the gradient's
bound is derived in `CertifiedModel.residual_bounds`. Their code (of October 2024) adds, for each class, twice the norm
of the columns' sums of residues when edges are removed, and nothing for nodes or features. Here it is counted each
time. The text of their Theorem 4.5 was not available.

Theirs is C++ that changes its arrays in place. This one copies them at each deletion, so its times say little.
"""

from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import scipy.sparse as sp

from benchmarks.baselines.linear import within_hops
from benchmarks.baselines.newton.certified_removal import CertifiedRemoval
from benchmarks.baselines.protocol import Array, BaselineError, Nodes
from projector import ModelSpec
from projector.graph.graph import Graph, feature_rows
from projector.network.spec import PropagationKind

#: The authors' `rmax` for small graphs (their README). Their code multiplies it by `column_sum`.
RMAX = 1e-7


@dataclass(frozen=True, eq=False)
class LazyRows:
    """Reserves and residues of all nodes, (L + 1, n, d) float64 each, on one graph. Read-only."""

    graph: Graph
    spec: ModelSpec
    residue: float
    reserves: Array
    residues: Array

    @classmethod
    def of(cls, graph: Graph, spec: ModelSpec, residue: float) -> "LazyRows":
        """Push from zero. Raises BaselineError for anything but `sym` with self loops of weight 1."""
        if spec.propagation is not PropagationKind.SYM or spec.self_loops != 1.0:
            raise BaselineError(
                "Lazy propagation is of D^-1/2 (A + I) D^-1/2.", "Use the propagation sym with self loops of weight 1."
            )
        shape = (spec.hops + 1, graph.nodes, graph.num_features)
        empty = cls(graph, spec, residue, np.zeros(shape), np.zeros(shape))
        return empty._mended(graph, np.arange(graph.nodes))

    @property
    def error(self) -> float:
        """As `Embedding.error`."""
        return float(np.linalg.norm(self.errors[list(self.spec.block_hops)]))

    @cached_property
    def errors(self) -> Array:
        """Upper bounds on the Frobenius norm of each block's error, (L + 1,)."""
        scaled = self.residues / np.sqrt(degrees(self.graph))[:, None]
        return np.cumsum(np.linalg.norm(scaled, axis=(1, 2)))

    def rows(self, nodes: Nodes) -> Array:
        """As `Embedding.rows`: D^-1/2 q_k side by side."""
        chosen = self.reserves[list(self.spec.block_hops)][:, nodes]
        scaled = chosen / np.sqrt(degrees(self.graph)[nodes])[:, None]
        return np.concatenate(list(scaled), axis=1)

    def on(self, graph: Graph) -> "LazyRows":
        """As `Embedding.on`. Computes only what the change touches."""
        changed = degrees(graph) != degrees(self.graph)
        difference = graph.features - self.graph.features
        if isinstance(difference, np.ndarray):
            changed |= difference.any(axis=1)
        else:
            changed |= np.diff(difference.indptr) > 0
        return self._mended(graph, np.flatnonzero(changed))

    def _mended(self, graph: Graph, touched: Nodes) -> "LazyRows":
        """Correct the equations for `touched`, whose edges or features changed, and push from there."""
        q, r, d = self.reserves.copy(), self.residues.copy(), degrees(graph)
        shares = sp.csr_array((graph.adjacency + sp.eye_array(graph.nodes)) @ sp.diags_array(1 / d))
        q[:, touched] *= (d[touched] / degrees(self.graph)[touched])[:, None]
        r[0, touched] = np.sqrt(d[touched])[:, None] * feature_rows(graph.features, touched) - q[0, touched]
        for k in range(1, self.spec.hops + 1):
            r[k, touched] = shares[touched] @ q[k - 1] - q[k, touched]
        reached = touched
        for k in range(self.spec.hops):
            moved = np.where(np.abs(r[k, reached]) > self.residue, r[k, reached], 0.0)
            sources = moved.any(axis=1)
            pushed, moved = reached[sources], moved[sources]
            q[k, pushed] += moved
            r[k, pushed] -= moved
            reached = np.flatnonzero(within_hops(graph, pushed, 1))
            r[k + 1, reached] += shares[reached][:, pushed] @ moved
            reached = np.union1d(reached, touched)
        # Nothing follows the last hop, so taking over its residues costs nothing.
        q[-1, reached] += r[-1, reached]
        r[-1, reached] = 0.0
        return LazyRows(graph, self.spec, self.residue, q, r)


def scalegun(
    spec: ModelSpec,
    noise: float = 0.1,
    epsilon: float = 1.0,
    delta: float = 1e-4,
    seed: int = 0,
    rmax: float = RMAX,
) -> CertifiedRemoval:
    """Certified removal on lazily propagated rows, with residues of at most `rmax` times the features' mean sum."""
    return CertifiedRemoval(spec, noise, epsilon, delta, seed, partial(_scaled, rmax=rmax))


def _scaled(graph: Graph, spec: ModelSpec, rmax: float) -> LazyRows:
    return LazyRows.of(graph, spec, rmax * column_sum(graph))


def column_sum(graph: Graph) -> float:
    """Return the mean over features of the sum of their absolute values over all nodes."""
    return float(abs(graph.features).sum()) / graph.num_features


def degrees(graph: Graph) -> Array:
    """Return the degrees of A + I, (n,)."""
    return np.asarray(graph.adjacency.sum(axis=1)).ravel() + 1.0
