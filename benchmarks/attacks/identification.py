"""Identify the deleted node among candidates with known rows and labels, from other nodes' answers before and after.

There are two attackers. One knows the objective: each candidate's deletion moves the weights in its own direction, and
a matched filter looks for the direction of the observed change. The other knows the edges: when a node is deleted, its
neighbours' answers change. Neither queries the candidates, since a service reports directly that a node is missing.

The matched filter detects a leak in the weights (all weights, or one class's column, left as they were) if `after` is
the retrained model: the difference between the two models is then the deleted node's part. The neighbours' filter
claims nothing there. Both models answer on the graph without the node, and nearby nodes change more only because their
rows are alike.
"""

import numpy as np

from benchmarks.attacks.black_box import BlackBox
from benchmarks.attacks.knowledge import Known
from benchmarks.baselines.protocol import Array, Nodes


def matched_filter(before: BlackBox, after: BlackBox, known: Known, labels: Nodes) -> Array:
    """Score every candidate by its predicted influence. `labels` (k,) are the candidates'. Returns (k,)."""
    return known.agreement(known.changes(before, after), labels)


def neighbours(before: BlackBox, after: BlackBox, known: Known) -> Array:
    """Score every candidate by how much the answers of its public neighbours changed. Returns (k,).

    Changes are weighted by P, the weights of the candidate's features in its neighbours' rows. A candidate without
    public neighbours scores 0.
    """
    size = np.abs(known.changes(before, after)).sum(axis=1)
    links = known.P[known.asked][:, known.candidates]
    lengths = np.sqrt(np.asarray(links.multiply(links).sum(axis=0)).ravel())
    return np.asarray(np.divide(links.T @ size, lengths, out=np.zeros(lengths.size), where=lengths > 0))
