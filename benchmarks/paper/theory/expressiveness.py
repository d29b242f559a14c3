"""The conditions of the paper's proposition on expressiveness, and its conclusion.

The proposition: if no two eigenvalues of P are equal and no row of U X is zero (U^T X, with eigenvectors as columns),
sum_l P^l X w_l, l < n, is any function of the nodes. Without the conditions, it reaches exactly the sum over the
eigenspaces E of the ranges of U_E^T X: n - sum_E rank(U_E^T X) dimensions are missed.

Repeated eigenvalues can be shown without a decomposition, at any n. P has the eigenvalue 1 once for every component
with an edge. If k + 1 nodes have the same neighbours, the differences e_u - e_v are k eigenvectors of eigenvalue s /
(degree + s), or (s - 1) / (degree + s) if the nodes are also neighbours of each other. s is the weight of a self-loop.
If two such nodes have the same features, X^T (e_u - e_v) = 0 and a dimension is missed.
"""

from collections import Counter, defaultdict
from fractions import Fraction

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from benchmarks.baselines.linear import propagation
from benchmarks.paper.units import Cases, Figures, Unit
from projector import ModelSpec
from projector.graph.features import FeatureMatrix
from projector.graph.graph import Graph

#: Weight of a self-loop: Lethe's, and none as in the paper's P = D^-1/2 A D^-1/2.
LOOPS = {"self-loops": 1, "without self-loops": 0}
#: Maximum number of nodes for decomposing P.
_MOST = 4_000
#: Eigenvalues (at most 1) closer than this count as one. LAPACK's error is a hundredth of it at that size.
_SAME = 1e-10
#: Singular values of U_E^T X at or below this share of the largest of X count as zero.
_NOTHING = 1e-9


def expressiveness(graph: Graph, unit: Unit) -> Cases:
    """Count repeated eigenvalues and missed dimensions: lower bounds, and exact values up to 4,000 nodes."""
    loops = LOOPS[unit.method]
    yield "proven", proven(graph, loops)
    if graph.nodes <= _MOST:
        yield "decomposed", decomposed(graph, loops)


def proven(graph: Graph, loops: int) -> Figures:
    """Return lower bounds from components and from nodes with the same neighbours."""
    A = sp.csr_array(graph.adjacency)
    degrees = np.diff(A.indptr)
    count, of_node = connected_components(A, directed=False)
    edged = np.unique(of_node[degrees > 0]).size
    multiplicity: Counter[Fraction] = Counter({Fraction(1): edged})
    features = FeatureMatrix(graph.features)
    isolated = np.flatnonzero(degrees == 0)
    # P_ii is 1 with a self-loop and 0 without.
    multiplicity[Fraction(min(loops, 1))] += isolated.size
    missed = int((features.row_norms.numpy()[isolated] == 0).sum())
    twins = 0
    for own in (0, 1):
        groups = defaultdict(list)
        for node in np.flatnonzero(degrees > 0).tolist():
            near = A.indices[A.indptr[node] : A.indptr[node + 1]]
            groups[np.sort(np.append(near, node) if own else near).tobytes()].append(node)
        for group in groups.values():
            if len(group) > 1:
                k = int(degrees[group[0]])
                multiplicity[Fraction(loops - own, k + loops)] += len(group) - 1
                twins += len(group) - 1
                missed += len(group) - np.unique(features.dense_rows(np.array(group)).numpy(), axis=0).shape[0]
    return {
        "nodes": graph.nodes,
        "components": int(count),
        "twins": twins,
        "repeats": sum(each - 1 for each in multiplicity.values() if each > 1),
        "missed": missed,
    }


def decomposed(graph: Graph, loops: int) -> Figures:
    """Return exact values from the eigenvectors."""
    values, U = np.linalg.eigh(propagation(graph, ModelSpec(self_loops=loops)).toarray())
    X = graph.features.astype(np.float64)
    X = X if isinstance(X, np.ndarray) else X.toarray()
    turned = U.T @ X
    limit = _NOTHING * float(np.linalg.norm(X, 2))
    gaps = np.diff(values)
    missed = 0
    for space in np.split(turned, np.flatnonzero(gaps > _SAME) + 1):
        missed += len(space) - _rank(space, limit)
    return {
        "nodes": graph.nodes,
        "repeats": int((gaps <= _SAME).sum()),
        "missed": missed,
    }


def _rank(rows: NDArray[np.float64], limit: float) -> int:
    return int((np.linalg.svd(rows, compute_uv=False) > limit).sum())
