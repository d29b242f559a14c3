"""What the paper's experiments have in common: datasets, the model, which nodes are deleted, how time is taken.

Seconds are of the processor: other work on the machine changes them less than those of the clock. Each is also given as
a multiple of what Lethe's projection took for the same deletion in the same process. What methods have in common, as
Lethe's model of a graph, is made once for all that are measured one after another.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from statistics import median

import numpy as np

from benchmarks.baselines.catalogue import is_squared
from benchmarks.baselines.lethe import Lethe
from benchmarks.baselines.nonlinear import Kind
from benchmarks.baselines.protocol import Nodes, Trained
from benchmarks.paper.units import Cases, Unit
from projector import ModelSpec
from projector.graph.graph import Graph
from projector.network.spec import LossKind, SolverKind

SMALL = ("cora", "citeseer", "pubmed", "amazon_photo", "coauthor_cs")
ARXIV = "ogbn_arxiv_llm"
#: Methods that go from one node to the next, on Cora alone: the larger graphs have thousands. Their lambda is Chien
#: et al.'s.
CERTIFIED, CERTIFIED_LAMBDA = ("certified removal", "scalegun"), 1e-2
#: The support vector machines of the appendix.
SMOOTHED_HINGE, PLAIN_HINGE = "smoothed hinge", "plain hinge"
#: Ends the name of a method that is measured with a softmax.
SOFTMAX = ", softmax"


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

    Lambda is 1e-4, and 1e-2 for certified removal, as published: at 1e-4 its budget pays for hardly a step. Support
    vector machines have the hinge instead, smoothed for Newton's method or as it is for Pegasos' steps; some methods
    are measured with a softmax as well, and ridge regressions have the squared loss.
    """
    if method == PLAIN_HINGE:
        return ModelSpec(loss=LossKind.PLAIN_HINGE, solver=SolverKind.SGD, batch_size=32, epochs=100)
    if method == SMOOTHED_HINGE:
        return ModelSpec(loss=LossKind.HINGE)
    regularization = CERTIFIED_LAMBDA if method in CERTIFIED else 1e-4
    loss = LossKind.SQUARED if is_squared(method) else LossKind.SOFTMAX if method.endswith(SOFTMAX) else LossKind.OVR
    return ModelSpec(loss=loss, hops=3 if dataset == ARXIV else 2, regularization=regularization)


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


def lethe_seconds(graph: Graph, spec: ModelSpec, nodes: Nodes) -> float:
    """What Lethe's projection takes to forget `nodes` in this process, of the processor: the median of three."""
    return _lethe_seconds(graph, spec, nodes.tobytes())


@lru_cache(maxsize=4)
def _lethe_seconds(graph: Graph, spec: ModelSpec, nodes: bytes) -> float:
    deleted = np.frombuffer(nodes, dtype=np.int64)
    lethe = Lethe(spec, repair=False).fit(graph)
    return median(forgotten(lethe, deleted)[1] for _ in range(3))
