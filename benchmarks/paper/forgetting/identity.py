"""How many deletions, of single nodes and of random shares of all nodes, leave the projection without effect.

"Remaining" has two readings. The paper defines V_remain as the remaining *training* nodes (Section 3.1), while its
precondition needs the span of *all* nodes (Section 3.2). Lethe projects on the span of all live nodes; Option 1 as
printed on that of the remaining training nodes.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.paper.units import Cases, Unit
from projector.forgetting.gram import Gram, factorise
from projector.forgetting.rank import LEVERAGE_MARGIN
from projector.graph.features import FeatureMatrix
from projector.graph.graph import Graph

#: Random deletions of each share in one unit.
_DRAWS = 10
#: Number of nodes whose support is computed together.
_CHUNK = 2_048
#: The method whose remaining nodes are training nodes alone.
AS_PRINTED = "projector, option 1 as printed"


def identity(graph: Graph, unit: Unit) -> Cases:
    """Count the deletions that lose no direction, so that the projection leaves W as it is.

    `AS_PRINTED` counts the deletions of single training nodes that lose no direction of the training nodes' span.
    """
    printed = unit.method == AS_PRINTED
    features = FeatureMatrix(graph.features[graph.train_mask] if printed else graph.features)
    gram = factorise(features, np.ones(features.nodes, dtype=np.bool_))
    alone = nodes_losing_a_direction(features, gram).size
    yield "single", {"draws": features.nodes, "unchanged": features.nodes - alone, "nodes": 1}
    if printed:
        return
    random = np.random.default_rng(unit.seed)
    for share in (0.01, 0.05, 0.10):
        nodes = max(1, round(share * graph.nodes))
        draws = [random.choice(graph.nodes, nodes, replace=False) for _ in range(_DRAWS)]
        unchanged = sum(directions_lost(features, gram, np.sort(each)) == 0 for each in draws)
        yield f"{share:g}", {"draws": _DRAWS, "unchanged": unchanged, "nodes": nodes}


def nodes_losing_a_direction(features: FeatureMatrix, gram: Gram) -> NDArray[np.int64]:
    """Return the nodes whose deletion, each alone, loses a direction of the span, by the rule of `gram.downdate`.

    A candidate has leverage x M+ x^T near 1. Its direction is lost if no other row has a part along it.
    """
    every = np.arange(features.nodes, dtype=np.int64)
    lost: list[NDArray[np.int64]] = []
    cutoff = (gram.rank_tolerance * gram.sigma_ref_squared) ** 0.5
    for start in range(0, features.nodes, _CHUNK):
        chunk = every[start : start + _CHUNK]
        X = features.dense_rows(chunk)
        Y = X @ gram.M_pinv
        near = ((X * Y).sum(dim=1) >= 1.0 - LEVERAGE_MARGIN).cpu().numpy()
        candidates = chunk[near]
        if not candidates.size:
            continue
        along = Y[torch.from_numpy(near).to(Y.device)]
        along = along / torch.linalg.vector_norm(along, dim=1, keepdim=True)
        support = features.matmul(along.T)
        support[torch.from_numpy(candidates).to(support.device), torch.arange(len(candidates))] = 0.0
        alone = torch.linalg.vector_norm(support, dim=0) <= cutoff
        lost.append(candidates[alone.cpu().numpy()])
    return np.concatenate(lost) if lost else every[:0]


def directions_lost(features: FeatureMatrix, gram: Gram, deleted: NDArray[np.int64]) -> int:
    """Count the directions of the span that are lost with the rows `deleted` (m,), without updating anything.

    The candidates are those of `gram.downdate`, decided as in `nodes_losing_a_direction`.
    """
    X_D = features.dense_rows(deleted)
    # R has the same leverages as X_D, apart from zeros, and the same directions.
    rows = torch.linalg.qr(X_D, mode="r").R if X_D.shape[0] > X_D.shape[1] else X_D
    Y = rows @ gram.M_pinv
    eigenvalues, vectors = torch.linalg.eigh(Y @ rows.T)
    candidates = Y.T @ vectors[:, eigenvalues >= 1.0 - LEVERAGE_MARGIN]
    if candidates.shape[1] == 0:
        return 0
    support = features.matmul(torch.linalg.qr(candidates).Q)
    support[torch.from_numpy(deleted).to(support.device)] = 0.0
    sigma = torch.linalg.svdvals(support)
    cutoff = (gram.rank_tolerance * gram.sigma_ref_squared) ** 0.5
    return int((sigma <= cutoff).sum())
