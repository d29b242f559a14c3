"""Chien et al.'s 200 deletions one after another on Cora at (1, 1e-4), beside retraining."""

import time

import numpy as np

from benchmarks.baselines.certified_removal import CertifiedRemoval, standardised
from benchmarks.baselines.linear import remaining
from benchmarks.baselines.protocol import accuracy
from benchmarks.baselines.retraining import Retraining
from benchmarks.paper.setting import CERTIFIED_LAMBDA, forgotten
from benchmarks.paper.units import Cases, Figures, Unit
from projector import ModelSpec
from projector.graph.graph import Graph
from projector.network.spec import LossKind, PropagationKind

_DELETED = 200


def stream(graph: Graph, unit: Unit) -> Cases:
    """200 training nodes, in random order, each by a certified step; times beside retraining after each."""
    prepared = standardised(graph)
    spec = ModelSpec(loss=LossKind.OVR, regularization=CERTIFIED_LAMBDA, propagation=PropagationKind.ROW)
    training = np.flatnonzero(graph.train_mask)
    nodes = np.random.default_rng(unit.seed).permutation(training)[: min(_DELETED, training.size // 2)]
    settings = CertifiedRemoval(spec, seed=unit.seed)
    fitted = settings.fit(prepared)
    began = time.process_time()
    left = fitted.unlearn(nodes)
    spent = time.process_time() - began
    anew = settings.fit(remaining(prepared, nodes))
    retrained, once = forgotten(Retraining(spec).fit(prepared), nodes)
    figures: Figures = {
        "nodes": nodes.size,
        "accuracy_before": accuracy(fitted.predict(), graph, graph.test_mask),
        "accuracy_after": accuracy(left.predict(), graph, graph.test_mask),
        "accuracy_anew": accuracy(anew.predict(), graph, graph.test_mask),
        "accuracy_retrained": accuracy(retrained.predict(), graph, graph.test_mask),
        "retrainings": left.retrainings,
        "seconds": spent,
        "seconds_of_one_retraining": once,
        "epsilon": left.epsilon,
    }
    yield str(nodes.size), figures
