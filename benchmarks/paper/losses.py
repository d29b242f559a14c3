"""Test accuracy of the linear model with each loss, with lambda chosen by validation.

H = [X, PX, P^2 X] and the dataset's split; a seed draws the split if a dataset has none. The squared loss gets its
probabilities from a temperature fitted on validation nodes.
"""

import math
import time
from dataclasses import replace

import numpy as np
import torch
from torch.nn.functional import nll_loss

from benchmarks.paper.units import Cases, Figures, Unit
from projector import ModelSpec
from projector.graph.graph import Graph
from projector.network.losses import loss_of
from projector.network.spec import Combine, LossKind
from projector.training.fit import train
from projector.training.scaling import well_scaled
from projector.training.temperature import fitted_temperature

#: Candidate lambdas.
LAMBDAS = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
LOSSES = (LossKind.SOFTMAX, LossKind.OVR, LossKind.SQUARED)
_SPEC = ModelSpec(combine=Combine.CONCAT)


def losses(graph: Graph, unit: Unit) -> Cases:
    """Yield, for each lambda, validation and test accuracy, and the test nodes' mean negative log-likelihood.

    "chosen" is the lambda with the best validation accuracy, the largest one among equals.
    """
    graph = replace(graph, features=well_scaled(graph.features, np.ones(graph.nodes, dtype=np.bool_)).features)
    found: dict[float, Figures] = {}
    for regularization in LAMBDAS:
        spec = replace(_SPEC, loss=LossKind(unit.method), regularization=regularization, seed=unit.seed)
        found[regularization] = _figures(graph, spec)
        yield f"{regularization:g}", found[regularization]
    best = max(LAMBDAS, key=lambda each: (found[each]["validation"] or 0.0, each))
    yield "chosen", {"lambda": best, **found[best]}


def _figures(graph: Graph, spec: ModelSpec) -> Figures:
    began = time.process_time()
    logits = train(spec, graph).logits
    seconds = time.process_time() - began
    squared = spec.loss is LossKind.SQUARED
    temperature = fitted_temperature(graph, logits) if squared else None
    probabilities = loss_of(spec.loss, temperature=temperature).probabilities(logits)
    right = logits.argmax(dim=1).numpy() == graph.labels
    tested = np.flatnonzero(graph.test_mask)
    missed = nll_loss(probabilities[tested].clamp(min=math.ulp(0.0)).log(), torch.from_numpy(graph.labels[tested]))
    return {
        "validation": float(right[graph.val_mask].mean()),
        "test": float(right[tested].mean()),
        "negative_log_likelihood": float(missed),
        "temperature": temperature,
        "seconds": seconds,
    }
