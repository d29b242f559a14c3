"""Methods of other papers beside Lethe, by the protocol of "Is graph unlearning ready for practice?" (ICLR 2026).

Taken from the protocol, by its description and its published code:

* accuracy, and fidelity: the share of test nodes that get the class that retraining gives them;
* the distance of their logits to retraining's, the mean of |z - z_u|_2, and of the parameters, |W - W_u| / |W_u|;
* peak memory and time;
* labels that are wrong before the deletion.

Each distance stands beside that of the model that forgot nothing, so that a method that does nothing shows.

What differs from it: here 5 % of the training nodes are deleted. Every model answers on the remaining graph, where the
protocol's code takes the whole graph for most methods and for retraining, and the remaining one for GIF and IDEA. The
split is each dataset's own, with validation nodes. Memory is what the first deletion takes at its peak, in a process of
its own. The attack is U-LiRA (`paper.inference.lira`); the protocol's edge inversion is left out.

The loss is the softmax, so that the linear model and the network are trained on the same one. Ridge regressions
use the squared loss; each is compared with its own retraining.
"""

from dataclasses import replace
from functools import lru_cache

import numpy as np

from benchmarks.baselines.catalogue import build
from benchmarks.baselines.field.differentiable import Model, flat, parameters_of
from benchmarks.baselines.field.gif import InfluenceFunction, bound, certified_noise, influence
from benchmarks.baselines.field.gnndelete import Deleted
from benchmarks.baselines.linear import logits, remaining, within_hops
from benchmarks.baselines.nonlinear import TrainedNetwork
from benchmarks.baselines.protocol import Array, Nodes, Trained, accuracy
from benchmarks.paper.forgetting.closeness import retraining_of
from benchmarks.paper.memory import peak
from benchmarks.paper.setting import drawn, forgotten, spec_of
from benchmarks.paper.units import Cases, Figures, Unit
from projector import ModelSpec
from projector.graph.graph import Graph
from projector.network.spec import LossKind

#: Deleted share of the training nodes.
SHARE = 0.05
DELETED, MISLABELLED = "deleted", "mislabelled"
#: The guarantee that IDEA's noise is compared with, and the constants that its authors' code assumes.
_EPSILON, _DELTA = 1.0, 1e-4
_LIPSCHITZ, _CONVEXITY, _LOSS = 0.25, 1.0, 0.5


def field(graph: Graph, unit: Unit) -> Cases:
    """Delete 5 % of the training nodes: as they are, and after training with a wrong label on each of them."""
    spec = replace(spec_of(unit.dataset), loss=LossKind.SOFTMAX)
    nodes = drawn(graph, SHARE, unit.seed)
    yield DELETED, _measured(graph, unit, spec, nodes)
    figures = _measured(mislabelled(graph, unit.seed), unit, spec, nodes)
    yield MISLABELLED, {name: each for name, each in figures.items() if name.startswith(("accuracy", "given"))}


@lru_cache(maxsize=1)
def mislabelled(graph: Graph, seed: int) -> Graph:
    """Return `graph` with another class for each of the nodes to be deleted, drawn at random."""
    nodes, labels = drawn(graph, SHARE, seed), graph.labels.copy()
    moves = np.random.default_rng(seed).integers(1, graph.num_classes, nodes.size)
    labels[nodes] = (labels[nodes] + moves) % graph.num_classes
    return replace(graph, labels=labels)


@lru_cache(maxsize=4)
def _retrained(graph: Graph, method: str, spec: ModelSpec, seed: int) -> Trained:
    """Retrain by `method` without the nodes drawn. Cached for consecutive measurements."""
    return build(method, spec, seed, spec.regularization).fit(graph).unlearn(drawn(graph, SHARE, seed))


def _measured(graph: Graph, unit: Unit, spec: ModelSpec, nodes: Nodes) -> Figures:
    """Return the figures of one deletion; `given` is the share of deleted nodes that get their label of training."""
    fitted = build(unit.method, spec, unit.seed, spec.regularization).fit(graph)
    (left, seconds), mebibytes = peak(lambda: forgotten(fitted, nodes))
    again = _retrained(graph, retraining_of(unit.method), spec, unit.seed)
    after, test = remaining(graph, nodes), np.flatnonzero(graph.test_mask)
    models = {"before": fitted, "after": left, "retrained": again}
    answers = {"before": fitted.predict_on(after), "after": left.predict(), "retrained": again.predict()}
    found: Figures = {"nodes": nodes.size, "seconds": seconds, "peak_mib": mebibytes}
    goal = answers["retrained"]
    for when, model in models.items():
        here = answers[when]
        whole = model.predict_on(graph)
        if here is None or goal is None or whole is None:
            continue
        found[f"accuracy_{when}"] = accuracy(here, graph, graph.test_mask)
        found[f"given_{when}"] = float((whole[nodes].argmax(axis=1) == graph.labels[nodes]).mean())
        if when != "retrained":
            found[f"fidelity_{when}"] = float((here.argmax(axis=1) == goal.argmax(axis=1))[test].mean())
            found[f"logits_{when}"] = _apart(_logits(model, after, spec), _logits(again, after, spec), test)
            found[f"parameters_{when}"] = _relative(_parameters(model), _parameters(again))
    if isinstance(fitted, Model) and isinstance(fitted.method, InfluenceFunction) and fitted.method.noise:
        found["noise"], found["certified_noise"] = fitted.method.noise, _certified(fitted, after, nodes)
    return found


def _certified(fitted: Model, after: Graph, nodes: Nodes) -> float:
    """Return the noise that IDEA's Theorem 3 asks for at (1, 1e-4), with the constants of the authors' code."""
    method, graph = fitted.method, fitted.graph
    assert isinstance(method, InfluenceFunction)
    step = float(np.linalg.norm(flat(influence(fitted, after, method.least_scale, method.steps))))
    affected = within_hops(graph, nodes, fitted.backbone.hops) & after.train_mask
    distance = bound(
        step,
        int(graph.train_mask.sum()),
        nodes.size,
        int(affected.sum()),
        lipschitz=_LIPSCHITZ,
        convexity=_CONVEXITY,
        loss=_LOSS,
    )
    return certified_noise(distance, _EPSILON, _DELTA)


def _logits(model: Trained, graph: Graph, spec: ModelSpec) -> Array | None:
    """Return the logits of every node of `graph`, (n, C); None for a model that has none, such as a vote."""
    if isinstance(model, Model):
        return model.logits_on(graph)
    if isinstance(model, TrainedNetwork):
        return model.logits_on(graph).numpy().astype(np.float64)
    return None if model.weights is None else logits(graph, spec, model.weights)


def _parameters(model: Trained) -> Array | None:
    """Return all parameters, (p,); None for a model with more of them than retraining has."""
    if isinstance(model, Deleted):
        return None
    if isinstance(model, Model):
        return flat(model.parameters)
    if isinstance(model, TrainedNetwork):
        return flat(parameters_of(model.layers))
    return None if model.weights is None else model.weights.ravel()


def _apart(left: Array | None, right: Array | None, rows: Nodes) -> float | None:
    if left is None or right is None:
        return None
    return float(np.linalg.norm(left[rows] - right[rows], axis=1).mean())


def _relative(left: Array | None, right: Array | None) -> float | None:
    if left is None or right is None:
        return None
    return float(np.linalg.norm(left - right) / np.linalg.norm(right))
