"""The temperature that turns squared-loss scores into probabilities, fitted once on validation nodes."""

import math

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.nn.functional import cross_entropy

from projector.graph.graph import Graph

#: Search range. Beyond it, probabilities are 0 and 1, or all equal, in float64.
SMALLEST, LARGEST = 1e-2, 1e2


def fitted_temperature(graph: Graph, logits: Tensor) -> float | None:
    """Return the T for which softmax(z / T) minimises the negative log-likelihood of `graph`'s validation nodes.

    `logits` z (n, C) are those of every node. Returns None without validation nodes. The likelihood is concave in 1/T,
    so the minimum is unique.
    """
    rows = torch.from_numpy(np.flatnonzero(graph.val_mask)).to(logits.device)
    if not rows.numel():
        return None
    scores, labels = logits[rows], torch.from_numpy(graph.labels).to(logits.device)[rows]

    def loss(exponent: float) -> float:
        return float(cross_entropy(scores * math.exp(-exponent), labels))

    found = minimize_scalar(loss, bounds=(math.log(SMALLEST), math.log(LARGEST)), method="bounded")
    return math.exp(float(found.x))
