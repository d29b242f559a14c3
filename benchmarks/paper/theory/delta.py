"""delta of the paper's Assumption 3 and its Table 3: a node's distance from the span of all other nodes' features.

delta = max_i |x_i - projection of x_i on the span of the other rows|. A row of leverage x_i^T M+ x_i below 1 lies in
that span. A row of leverage 1 has a part r of its own, M+ x_i = r / |r|^2, and so |r| = 1 / |M+ x_i|: one pass instead
of n pseudo-inverses. Directions fainter than 1e-5 of the largest singular value do not count, so delta has that
accuracy.
"""

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spla
import torch
from numpy.typing import NDArray

from benchmarks.paper.forgetting.identity import nodes_losing_a_direction
from benchmarks.paper.units import Cases, Unit
from projector.forgetting.gram import factorise
from projector.graph.features import FeatureMatrix
from projector.graph.graph import Features, Graph

#: Order of the norm that divides the rows. The paper does not give it, and its figures match none of these.
SCALINGS = {"raw": None, "row sums of 1": 1, "row norms of 1": 2}


def delta(graph: Graph, unit: Unit) -> Cases:
    """Yield delta, the number of nodes with a part of their own, and |mean x|, for one scaling of the rows."""
    X = scaled(graph.features, unit.method)
    own = own_parts(X)
    rows = FeatureMatrix(X).row_norms
    yield (
        "all",
        {
            "delta": float(own.max()),
            "nodes": graph.nodes,
            "alone": int((own > 0).sum()),
            "mean_row": float(np.linalg.norm(np.asarray(X.mean(axis=0)))),
            "longest_row": float(rows.max()),
        },
    )


def scaled(features: Features, scaling: str) -> NDArray[np.float64] | sp.csr_array:
    """Return `features` (n, d) float64, each row divided by its sum of absolute values, or norm; zero rows stay."""
    X = features.astype(np.float64)
    order = SCALINGS[scaling]
    if order is None:
        return X
    sparse = not isinstance(X, np.ndarray)
    sizes = np.asarray(spla.norm(X, ord=order, axis=1) if sparse else np.linalg.norm(X, ord=order, axis=1))
    inverse = np.divide(1.0, sizes, out=np.zeros_like(sizes), where=sizes > 0)
    return sp.csr_array(sp.diags_array(inverse) @ X) if sparse else X * inverse[:, None]


def own_parts(X: NDArray[np.float64] | sp.csr_array) -> NDArray[np.float64]:
    """Return |x_i - projection of x_i on the span of the other rows of X (n, d)|, (n,)."""
    features = FeatureMatrix(X)
    gram = factorise(features, np.ones(features.nodes, dtype=np.bool_))
    alone = nodes_losing_a_direction(features, gram)
    own = np.zeros(features.nodes)
    own[alone] = 1.0 / torch.linalg.vector_norm(features.dense_rows(alone) @ gram.M_pinv, dim=1).numpy()
    return own
