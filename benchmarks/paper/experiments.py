"""The paper's experiments: what each measures in one unit, of which methods, on which datasets.

* `injection`, the feature injection test (the paper's Table 1): a share of the training nodes gets a binary feature and
  a class of its own, the model is trained, exactly these nodes are deleted.
* `regularization`: the same with 5 %, at every lambda that is tried (`choose_regularization`).
* `closeness` (Figure 3): a share of the training nodes is deleted. |W_u - W_p|_F / |W|_F, and the mean over deleted,
  remaining and test nodes of |p_p - p_u|_2, both models answering on the whole graph (that of before for deleted
  nodes), where u is retraining with the same lambda.
* `identity`: of how many deletions, of single nodes and of random shares of all nodes, the projection takes nothing.
* `accuracy`: the linear model with and without adaptive diffusion, label reuse and MLP, as the paper sets it, and
  networks that are not linear.
* `stream`: Chien et al.'s 200 deletions one after another on Cora at (1, 1e-4), beside retraining.

Seconds are of the processor: other work on the machine changes them less than those of the clock. Each is also given as
a multiple of what Lethe's projection took for the same deletion in the same process. What
methods have in common, a graph with its channel, Lethe's model of it and the retrained weights, is made once for all
that are measured one after another.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import median

import numpy as np

from benchmarks.baselines.catalogue import METHODS, build
from benchmarks.baselines.certified_removal import CertifiedRemoval, standardised
from benchmarks.baselines.lethe import Held, Lethe
from benchmarks.baselines.linear import logits, probabilities, remaining
from benchmarks.baselines.nonlinear import Kind, Network
from benchmarks.baselines.protocol import LAMBDAS, Array, BaselineError, Nodes, Trained, accuracy
from benchmarks.baselines.retraining import Retrained, Retraining
from benchmarks.baselines.shadow import shadow_accuracy
from benchmarks.paper.accuracy import VARIANTS, Variant, accuracy_by_all_labels_but_test
from benchmarks.paper.accuracy import accuracy as variant_accuracy
from benchmarks.paper.unchanged_weights import directions_lost, nodes_losing_a_direction
from benchmarks.paper.units import Cases, Figures, Unit
from projector import ModelSpec
from projector.forgetting.gram import factorise
from projector.forgetting.injection import inject_channel
from projector.graph.features import FeatureMatrix
from projector.graph.graph import Graph
from projector.network.spec import Combine, LossKind, PropagationKind, SolverKind
from projector.training.scaling import well_scaled

SMALL = ("cora", "citeseer", "pubmed", "amazon_photo", "coauthor_cs")
ARXIV = "ogbn_arxiv_llm"
#: Random deletions of each share in one unit of `identity`.
_DRAWS = 10
#: Of the training nodes, deleted in `closeness`.
_SHARES = (0.01, 0.02, 0.05, 0.10)
#: Chien et al.: nodes deleted from Cora, and lambda (their README).
_STREAM, _STREAM_LAMBDA = 200, 1e-2
#: Those that go from one node to the next, on Cora alone: the larger graphs' hundreds take hours.
_CERTIFIED = ("certified removal", "scalegun")
#: The paper's appendix ("Model configuration"), without its sampler: descent with momentum 0.9 and full batches.
_AS_PRINTED = ModelSpec(
    combine=Combine.CONCAT, loss=LossKind.OVR, label_hops=2, regularization=1e-6, solver=SolverKind.SGD, momentum=0.9
)
#: L = 3, in the paper with a sampler that was to make it affordable, here also without.
_DEEP = ModelSpec(combine=Combine.CONCAT, loss=LossKind.OVR, hops=3)
_SHADOW = "linear, L = 3, ShaDow's sampler"
#: The paper's z^(0) of adaptive diffusion; ours knows the labels of training nodes alone.
_ALL_LABELS = "+ diffusion, z0 = y of all but test nodes"
_VARIANTS = {
    **VARIANTS,
    "linear, L = 3": Variant(_DEEP),
    **{
        f"the paper's settings, learning rate {rate:g}": Variant(replace(_AS_PRINTED, learning_rate=rate))
        for rate in (0.1, 1.0)
    },
}


@dataclass(frozen=True)
class Experiment:
    """One of them."""

    measure: Callable[[Graph, Unit], Cases]
    methods: tuple[str, ...]
    datasets: tuple[str, ...] = (*SMALL, ARXIV)
    #: Of the methods, those that `--quick` runs; all where there are none.
    quick: tuple[str, ...] = ()


def spec_of(dataset: str, method: str = "") -> ModelSpec:
    """The model that methods are compared on: Eq. 1 with L = 2, on arXiv 3 as in the paper.

    Lambda is 1e-4, and 1e-2 for certified removal, as published: at 1e-4 its budget pays for hardly a step.
    """
    regularization = _STREAM_LAMBDA if method in _CERTIFIED else 1e-4
    return ModelSpec(loss=LossKind.OVR, hops=3 if dataset == ARXIV else 2, regularization=regularization)


def is_network(method: str) -> bool:
    """Whether a method is not linear in the features."""
    return any(word in method.replace(",", "").split() for word in Kind)


def drawn(graph: Graph, share: float, seed: int) -> Nodes:
    """A random share of the training nodes, at least one, ascending."""
    training = np.flatnonzero(graph.train_mask)
    size = max(1, round(share * training.size))
    return np.sort(np.random.default_rng(seed).choice(training, size=size, replace=False))


def forgotten(fitted: Trained, nodes: Nodes) -> tuple[Trained, float]:
    """Without `nodes`, and the processor's seconds until the answers were there."""
    began = time.process_time()
    left = fitted.unlearn(nodes)
    left.predict()
    return left, time.process_time() - began


@lru_cache(maxsize=2)
def _lethe(graph: Graph, spec: ModelSpec) -> Held:
    return Lethe(spec, repair=False).fit(graph)


def lethe_seconds(graph: Graph, spec: ModelSpec, nodes: Nodes) -> float:
    """What Lethe's projection takes to forget `nodes` here and now, of the processor: the median of three."""
    return median(forgotten(_lethe(graph, spec), nodes)[1] for _ in range(3))


def injection(graph: Graph, unit: Unit) -> Cases:
    """The feature injection test with 5 and 10 % of the training nodes."""
    for share in (0.05, 0.10):
        yield f"{share:g}", _injected(graph, unit, spec_of(unit.dataset, unit.method), share)


def regularization(graph: Graph, unit: Unit) -> Cases:
    """The same with 5 %, for every lambda that a method could be given; empty where its training does not end."""
    for each in LAMBDAS:
        try:
            found = _injected(graph, unit, replace(spec_of(unit.dataset), regularization=each), 0.05)
        except BaselineError:
            # Influence and certified removal with noise have no minimum within reach of rounding at a small lambda.
            found = {}
        yield f"{each:g}", found


def _injected(graph: Graph, unit: Unit, spec: ModelSpec, share: float) -> Figures:
    nodes = drawn(graph, share, unit.seed)
    injected = with_channel(graph, share, unit.seed)
    fitted = build(unit.method, spec, unit.seed, spec.regularization).fit(injected)
    left, seconds = forgotten(fitted, nodes)
    before, after = fitted.predict(), left.predict()
    return {
        "nodes": nodes.size,
        "channel_norm_before": channel_norm(fitted.weights),
        "channel_norm_after": channel_norm(left.weights),
        "accuracy_before": accuracy(before, injected, graph.test_mask),
        "accuracy_after": accuracy(after, injected, graph.test_mask),
        "validation_before": accuracy(before, injected, graph.val_mask),
        "validation_after": accuracy(after, injected, graph.val_mask),
        "seconds": seconds,
        "times_lethe": seconds / lethe_seconds(injected, spec, nodes),
    }


@lru_cache(maxsize=2)
def with_channel(graph: Graph, share: float, seed: int) -> Graph:
    """`graph` with the feature and the class that mark the nodes drawn."""
    nodes = drawn(graph, share, seed)
    return inject_channel(graph, [graph.node_ids[node] for node in nodes.tolist()], extra_class=True)


def channel_norm(weights: Array | None) -> float | None:
    """The norm of the last feature's row of W, summed over blocks; None for a model without W."""
    return None if weights is None else float(np.linalg.norm(weights[:, -1], axis=1).sum())


def closeness(graph: Graph, unit: Unit) -> Cases:
    """Distance to retraining with 1, 2, 5 and 10 % of the training nodes deleted; of a linear method."""
    spec = spec_of(unit.dataset, unit.method)
    fitted = build(unit.method, spec, unit.seed, spec.regularization).fit(graph)
    for share in _SHARES:
        nodes = drawn(graph, share, unit.seed)
        left, seconds = forgotten(fitted, nodes)
        retrained = _retrained(graph, spec, share, unit.seed)
        assert fitted.weights is not None
        assert left.weights is not None
        kept = graph.train_mask.copy()
        kept[nodes] = False
        there = left.predict(), retrained.predict()
        # Deleted nodes have no place in the graph any more: both models answer on that of before.
        gone = [probabilities(logits(graph, spec, each), spec.loss) for each in (left.weights, retrained.weights)]
        yield (
            f"{share:g}",
            {
                "nodes": nodes.size,
                "weights": float(np.linalg.norm(left.weights - retrained.weights) / np.linalg.norm(fitted.weights)),
                "deleted": float(np.linalg.norm(gone[0][nodes] - gone[1][nodes], axis=1).mean()),
                "remaining": float(np.linalg.norm(there[0][kept] - there[1][kept], axis=1).mean()),
                "test": float(
                    np.linalg.norm(there[0][graph.test_mask] - there[1][graph.test_mask], axis=1).mean(),
                ),
                "seconds": seconds,
                "times_lethe": seconds / lethe_seconds(graph, spec, nodes),
            },
        )


@lru_cache(maxsize=len(_SHARES))
def _retrained(graph: Graph, spec: ModelSpec, share: float, seed: int) -> Retrained:
    return Retraining(spec).fit(graph).unlearn(drawn(graph, share, seed))


def identity(graph: Graph, unit: Unit) -> Cases:
    """Deletions in which no direction is lost, so that the projection leaves W as it is."""
    features = FeatureMatrix(graph.features)
    gram = factorise(features, np.ones(graph.nodes, dtype=np.bool_))
    alone = nodes_losing_a_direction(features, gram).size
    yield "single", {"draws": graph.nodes, "unchanged": graph.nodes - alone, "nodes": 1}
    random = np.random.default_rng(unit.seed)
    for share in (0.01, 0.05, 0.10):
        nodes = max(1, round(share * graph.nodes))
        draws = [random.choice(graph.nodes, nodes, replace=False) for _ in range(_DRAWS)]
        unchanged = sum(directions_lost(features, gram, np.sort(each)) == 0 for each in draws)
        yield f"{share:g}", {"draws": _DRAWS, "unchanged": unchanged, "nodes": nodes}


def accuracies(graph: Graph, unit: Unit) -> Cases:
    """Share of test nodes that one model classifies rightly, trained to its end on the whole graph."""
    began = time.process_time()
    if unit.method == _SHADOW:
        found = shadow_accuracy(graph, _DEEP.hops, _DEEP.regularization, unit.seed)
    elif unit.method == _ALL_LABELS:
        found = accuracy_by_all_labels_but_test(graph, unit.seed)
    elif unit.method in _VARIANTS:
        features = well_scaled(graph.features, np.ones(graph.nodes, dtype=np.bool_)).features
        found = variant_accuracy(graph, _VARIANTS[unit.method], unit.seed, features)
    else:
        found = accuracy(Network(Kind(unit.method), unit.seed).fit(graph).predict(), graph, graph.test_mask)
    yield "all", {"accuracy": found, "seconds": time.process_time() - began}


def stream(graph: Graph, unit: Unit) -> Cases:
    """200 training nodes, in random order, each by a certified step; times beside retraining after each."""
    prepared = standardised(graph)
    spec = ModelSpec(loss=LossKind.OVR, regularization=_STREAM_LAMBDA, propagation=PropagationKind.ROW)
    training = np.flatnonzero(graph.train_mask)
    nodes = np.random.default_rng(unit.seed).permutation(training)[: min(_STREAM, training.size // 2)]
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


_DIFFUSED = tuple(name for name in METHODS if "diffusion" in name)
#: Closeness is of blocks of propagated features.
_LINEAR = tuple(name for name in METHODS if not is_network(name) and name not in _DIFFUSED)
#: Erasers differ by network, partition and aggregator; one of them shows whether the machinery works.
_FEW = (*(name for name in _LINEAR if "eraser" not in name), "graph eraser, linear, metis, mean")
#: Of those that differ in how lambda suits them, one each.
_TUNED = ("retraining", "lethe, projection", "influence+", "fisher+", "graph eraser, linear, metis, mean")

EXPERIMENTS: dict[str, Experiment] = {
    "identity": Experiment(identity, ("lethe, projection",)),
    "injection": Experiment(
        injection,
        tuple(METHODS),
        quick=(*_FEW, "gcn", "lethe, projection, with diffusion", "retraining, with diffusion"),
    ),
    "regularization": Experiment(regularization, _TUNED, SMALL, quick=("retraining", "influence+")),
    "closeness": Experiment(closeness, _LINEAR, quick=_FEW),
    "accuracy": Experiment(
        accuracies,
        (*_VARIANTS, _ALL_LABELS, _SHADOW, *Kind),
        quick=("linear", "+ diffusion", _ALL_LABELS, _SHADOW, "gcn"),
    ),
    "stream": Experiment(stream, ("certified removal",), ("cora",)),
}


def plan(
    experiments: tuple[str, ...] = tuple(EXPERIMENTS),
    datasets: tuple[str, ...] | None = None,
    methods: tuple[str, ...] | None = None,
    seeds: int = 5,
    *,
    quick: bool = False,
) -> list[Unit]:
    """The units asked for, those of the first seed first; where a seed would draw nothing, or long takes, one alone.

    `datasets` other than an experiment's own (a file, one made up) are for all experiments.
    """
    units = []
    known = {name for each in EXPERIMENTS.values() for name in each.datasets}
    for seed in range(seeds):
        for name in experiments:
            experiment = EXPERIMENTS[name]
            for dataset in datasets or experiment.datasets:
                if dataset in known and dataset not in experiment.datasets:
                    continue
                for method in (quick and experiment.quick) or experiment.methods:
                    if (methods and method not in methods) or _too_long(dataset, method):
                        continue
                    if seed == 0 or not _one_seed(name, dataset, method):
                        units.append(Unit(name, dataset, method, seed))
    return units


def _too_long(dataset: str, method: str) -> bool:
    return method in _CERTIFIED and dataset in (*SMALL[1:], ARXIV)


def _one_seed(experiment: str, dataset: str, method: str) -> bool:
    """Networks on the larger graphs, and variants of which a seed changes nothing on a graph with its own split."""
    large = dataset in ("amazon_photo", "coauthor_cs", ARXIV)
    own_split = dataset in ("cora", "citeseer", "pubmed", ARXIV)
    variant = _VARIANTS.get(method) if experiment == "accuracy" else None
    fixed = variant is not None and not variant.public and not variant.spec.diffusion
    return (is_network(method) and large) or (fixed and own_split)
