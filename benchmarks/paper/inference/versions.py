"""The attackers' input: a model before and after deletions, with its answers recorded once.

Thirty nodes are deleted one at a time, then five batches of ten. Half of the training nodes, at most 5,000, are
candidates, and the deleted nodes are among them. All other nodes are public. Each deletion gives two pairs of versions:

* "before and after": visible to anyone who queries twice. Here retraining reveals the deleted node, as does every
  method that gives the same weights. Being detected is not a fault of the method.
* "after and retrained": visible to an auditor who has the same kind of model retrained (`retraining_of`). Any finding
  here is a trace that the method left. Not measured for want of time on the arXiv graph, nor for ridge regressions on
  Coauthor CS; nor for GraphEditor's fine-tuned weights, which are not retrained here.

The attackers know that GraphEditor's targets are 1 and -1. They take its fine-tuned weights for those of its closed
form.

The planted leak is retraining that keeps the old weights of one class: that of the (first) deleted node.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import fmean, median

import numpy as np

from benchmarks.attacks.black_box import BlackBox, recorded
from benchmarks.attacks.knowledge import Known
from benchmarks.baselines.catalogue import EDITOR_RETRAINING, build
from benchmarks.baselines.linear import LinearModel, stacked
from benchmarks.baselines.protocol import Array, Nodes, Trained
from benchmarks.baselines.retraining import Retraining
from benchmarks.baselines.ridge import EDITOR_TEMPERATURE
from benchmarks.paper.forgetting.closeness import retraining_of, trained_on
from benchmarks.paper.setting import SOFTMAX, spec_of
from benchmarks.paper.units import Figures, Unit
from projector import ModelSpec
from projector.graph.graph import Graph
from projector.network.spec import LossKind

#: Retraining that keeps the old weights of the deleted node's class.
PLANTED = "planted leak"
#: Rounding of answers: exact, or to this number of decimals.
ROUNDINGS = {"exact": None, "3": 3, "2": 2, "1": 1}
SEEN, AUDITED = "before and after", "after and retrained"
_CANDIDATES, _DELETIONS, _BATCHES, _BATCH = 5000, 30, 5, 10
#: Models of more nodes, and ridge regressions of more columns, are not retrained for an auditor.
_MOST_NODES, _MOST_RIDGE_COLUMNS = 50_000, 5_000


@dataclass(frozen=True, eq=False)
class Version:
    """A model at one point in time."""

    #: (n, C); zero rows for deleted nodes.
    answers: Array
    #: (p, C); None for a model that is not linear in the features.
    weights: Array | None

    @classmethod
    def of(cls, model: Trained | LinearModel) -> "Version":
        """Record the model's current answers and weights."""
        return cls(model.predict(), None if model.weights is None else stacked(model.weights))

    def rounded(self, decimals: int | None) -> BlackBox:
        """Return its answers, rounded to `decimals` places."""
        return recorded(self.answers, decimals)


@dataclass(frozen=True, eq=False)
class Victim:
    """The attackers' targets on a graph, and their knowledge; the same for every method."""

    known: Known
    #: Deletions, each (m,), among the candidates.
    single: Sequence[Nodes]
    batches: Sequence[Nodes]


@dataclass(frozen=True, eq=False)
class Pair:
    """Two versions, between which `nodes` (m,) were deleted."""

    name: str
    nodes: Nodes
    before: Version
    after: Version


def victim_of(graph: Graph, unit: Unit) -> Victim:
    """Return the victims of a seed."""
    victim = _victim(graph, spec_of(unit.dataset, unit.method), unit.seed)
    if retraining_of(unit.method) == EDITOR_RETRAINING:
        return replace(victim, known=replace(victim.known, temperature=EDITOR_TEMPERATURE))
    return victim


def pairs(graph: Graph, unit: Unit, deletions: Sequence[Nodes]) -> Iterator[Pair]:
    """Yield the versions before and after each deletion by a method."""
    spec, method = spec_of(unit.dataset, unit.method), unit.method.removesuffix(SOFTMAX)
    fitted: Trained = (
        Retraining(spec).fit(graph)
        if method == PLANTED
        else build(method, spec, unit.seed, spec.regularization).fit(graph)
    )
    audited = _audited(graph, spec, method)
    before = Version.of(fitted)
    for nodes in deletions:
        if method == PLANTED or (audited and method != "retraining"):
            retrained = _retrained(graph, retraining_of(method), spec, unit.seed, nodes.tobytes())
            left = (
                leaking(fitted, retrained, int(graph.labels[nodes[0]])) if method == PLANTED else fitted.unlearn(nodes)
            )
        else:
            left, retrained = fitted.unlearn(nodes), None
        after = Version.of(left)
        yield Pair(SEEN, nodes, before, after)
        if audited:
            yield Pair(AUDITED, nodes, after, after if retrained is None else Version.of(retrained))


def _audited(graph: Graph, spec: ModelSpec, method: str) -> bool:
    small = spec.loss is not LossKind.SQUARED or len(spec.block_hops) * graph.num_features <= _MOST_RIDGE_COLUMNS
    return graph.nodes <= _MOST_NODES and small and not method.endswith("fine-tuned")


def averaged(found: Sequence[Figures]) -> Figures:
    """Return the mean of every figure over deletions, and the median of ranks."""
    return {
        name: (median if name.endswith("rank") else fmean)(
            [value for each in found if (value := each[name]) is not None]
        )
        for name in found[0]
        if all(each[name] is not None for each in found)
    }


def by_pair(
    graph: Graph, unit: Unit, deletions: Sequence[Nodes], figures: Callable[[Pair], Figures]
) -> dict[str, Figures]:
    """Return `averaged` over the deletions, for each of the two pairs."""
    found: dict[str, list[Figures]] = {}
    for pair in pairs(graph, unit, deletions):
        found.setdefault(pair.name, []).append(figures(pair))
    return {name: averaged(each) for name, each in found.items()}


@lru_cache(maxsize=2)
def _victim(graph: Graph, spec: ModelSpec, seed: int) -> Victim:
    random = np.random.default_rng(seed)
    training = np.flatnonzero(graph.train_mask)
    candidates = np.sort(random.choice(training, min(_CANDIDATES, training.size // 2), replace=False))
    single = random.choice(candidates, min(_DELETIONS, candidates.size // 2), replace=False)
    size = min(_BATCH, candidates.size // 4)
    batches = [np.sort(random.choice(candidates, size, replace=False)) for _ in range(_BATCHES)]
    return Victim(Known.of(graph, spec, candidates), np.split(single, single.size), batches)


@lru_cache(maxsize=_DELETIONS + _BATCHES)
def _retrained(graph: Graph, method: str, spec: ModelSpec, seed: int, nodes: bytes) -> LinearModel:
    found = trained_on(graph, method, spec, seed).unlearn(np.frombuffer(nodes, dtype=np.int64))
    assert isinstance(found, LinearModel)
    # Without the factors of a ridge regression.
    return LinearModel(found.graph, found.spec, found.live, found.weights)


def leaking(fitted: Trained | LinearModel, retrained: LinearModel, column: int) -> LinearModel:
    """Return the retrained model `retrained`, with one column of the weights from `fitted`."""
    assert fitted.weights is not None
    weights = retrained.weights.copy()
    weights[:, :, column] = fitted.weights[:, :, column]
    return replace(retrained, weights=weights)
