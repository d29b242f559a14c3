"""Find deleted edges from the confidence of answers about their ends, after TrendAttack (2025).

Zhang et al., "Unlearning inversion attacks for graph neural networks". When an edge is unlearned, the confidence (the
largest probability) of its ends drops below that of the nodes around them. The paper combines this trend with the
similarity of the ends' answers, as in link stealing. Followed here: the confidence, the trend against the remaining
neighbours, the similarity, and the comparison with pairs that never were edges and with edges that remain. Ours: no
shadow model weighs the scores, so each stands alone. The score by change is also ours: it needs both versions, which
their attack does not use.

None of these scores claims to detect weights that stay as they were, since deleting an edge hardly moves them. They
detect answers that depend on whether an edge exists.
"""

import numpy as np
import scipy.sparse as sp

from benchmarks.attacks.black_box import BlackBox
from benchmarks.baselines.protocol import Array, Nodes


def by_change(before: BlackBox, after: BlackBox, pairs: Nodes) -> Array:
    """Score every pair (k, 2) by the smaller change in confidence of its two ends. Returns (k,)."""
    changes = [np.abs(_confidence(after, ends) - _confidence(before, ends)) for ends in pairs.T]
    return np.asarray(np.minimum(*changes))


def by_trend(after: BlackBox, adjacency: sp.csr_array, pairs: Nodes) -> Array:
    """Score pairs from one version: how far the ends' confidence lies below their neighbours' mean, summed.

    `adjacency` (n, n) holds the edges that the attacker knows. A node without edges has no trend.
    """
    ends = np.unique(pairs)
    links = sp.csr_array(adjacency[ends])
    around = np.unique(np.concatenate([ends, links.indices]))
    confidence = np.zeros(adjacency.shape[0])
    confidence[around] = _confidence(after, around)
    degrees = np.diff(links.indptr)
    mean = np.divide(links @ confidence, degrees, out=confidence[ends].copy(), where=degrees > 0)
    trend = np.zeros(adjacency.shape[0])
    trend[ends] = mean - confidence[ends]
    return np.asarray(trend[pairs].sum(axis=1))


def by_similarity(after: BlackBox, pairs: Nodes) -> Array:
    """Score pairs by the cosine between the answers about both ends; 0 if one end is missing."""
    one, other = (after(ends) for ends in pairs.T)
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return np.asarray(np.divide((one * other).sum(axis=1), lengths, out=np.zeros(len(pairs)), where=lengths > 0))


def _confidence(model: BlackBox, nodes: Nodes) -> Array:
    return np.asarray(model(nodes).max(axis=1))
