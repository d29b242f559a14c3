"""The temperature that turns scores of the squared loss into probabilities, fitted once on validation nodes."""

import math

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.nn.functional import cross_entropy

from projector.graph.graph import Graph

#: Temperatures that are tried: beyond, probabilities are 0 and 1 or all alike to float64.
SMALLEST, LARGEST = 1e-2, 1e2


def fitted_temperature(graph: Graph, logits: Tensor) -> float | None:
    """The T for which softmax(z / T) has the least negative log-likelihood on the validation nodes of `graph`.

    `logits` z (n, C) are those of every node. None where there is no validation node. By 1/T the likelihood is concave,
    so there is one such T.
    """
    rows = torch.from_numpy(np.flatnonzero(graph.val_mask)).to(logits.device)
    if not rows.numel():
        return None
    scores, labels = logits[rows], torch.from_numpy(graph.labels).to(logits.device)[rows]

    def loss(exponent: float) -> float:
        return float(cross_entropy(scores * math.exp(-exponent), labels))

    found = minimize_scalar(loss, bounds=(math.log(SMALLEST), math.log(LARGEST)), method="bounded")
    return math.exp(float(found.x))
