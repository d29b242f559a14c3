"""The diagonals of P, P^2 and P^3 without forming any power of P.

P = diag(l) (A + sI) diag(r) with A symmetric, with a zero diagonal. With w = l * r and B the squares of A's entries (A
itself without weights), the closed walks of one, two and three steps from node i have the weights

    (P)_ii   = s w_i
    (P^2)_ii = w_i (s^2 w_i + (B w)_i)
    (P^3)_ii = w_i (s^3 w_i^2 + 2 s w_i (B w)_i + s (B w^2)_i + t_i),
    t_i      = sum over triangles i, j, k of 2 a_ij a_jk a_ki w_j w_k.
"""

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray


def diagonal_of_power(
    adjacency: sp.csr_array, w: NDArray[np.float64], self_loops: float, power: int, *, weighted: bool
) -> NDArray[np.float64]:
    """Return diag P^power, (n,), for `power` 1, 2 or 3 and w = l * r (n,). Raises ValueError for any other power.

    Unless `weighted`, the entries of `adjacency` are 0 and 1.
    """
    if power == 1:
        return self_loops * w
    if power not in (2, 3):
        raise ValueError(f"the diagonal of the power {power} is not provided, only those of 1, 2 and 3")
    B = adjacency.power(2) if weighted else adjacency
    if power == 2:
        return np.asarray(w * (self_loops**2 * w + B @ w))
    walks = self_loops**3 * w**2 + 2 * self_loops * w * (B @ w) + self_loops * (B @ w**2)
    return np.asarray(w * (walks + _triangles(adjacency, w)))


def _triangles(adjacency: sp.csr_array, w: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return for each node the sum of 2 w_j w_k over its triangles, each times the weights of its edges, (n,).

    Each edge points from the node of lower degree to that of higher. So every triangle appears once, as a -> b -> c
    with a -> c, and hubs have few outgoing edges: the products below stay near the size of A.
    """
    n = adjacency.shape[0]
    rank = np.empty(n, dtype=np.int64)
    rank[np.argsort(np.diff(adjacency.indptr), kind="stable")] = np.arange(n)
    edges = adjacency.tocoo()
    upward = (rank[edges.row] < rank[edges.col]) & (edges.data != 0)
    U = sp.csr_array((edges.data[upward], (edges.row[upward], edges.col[upward])), shape=(n, n))
    weighted = sp.csr_array(sp.diags_array(w) @ U)
    # (a, c): sum of w_b over b between them; (b, c): sum of w_a over a below both.
    between = (U @ weighted).multiply(U)
    below = (U.T @ weighted).multiply(U)
    return np.asarray(2.0 * (between @ w + between.T @ w + below @ w))
