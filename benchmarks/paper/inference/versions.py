"""What the attacks are given: a model before and after deletions, its answers recorded once.

Thirty nodes are deleted one at a time, then five batches of ten. Half of the training nodes, at most 5,000, are
candidates, of whom the deleted are; all others are public. Each deletion makes two pairs of versions:

* "before and after": what anybody sees who asks twice. Retraining tells who was deleted here, as does every method that
  gives the same weights: it is no fault of a method to be found out.
* "after and retrained": what an auditor sees who has the model trained anew. Nothing may be found here: what is, the
  method has left. Not of the arXiv graph, where training anew takes half a minute a deletion.

The planted leak is retraining, with the weights of one class as they were before: that of the (first) deleted node.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import fmean, median

import numpy as np

from benchmarks.attacks.black_box import BlackBox, recorded
from benchmarks.attacks.knowledge import Known
from benchmarks.baselines.catalogue import build
from benchmarks.baselines.linear import LinearModel, stacked
from benchmarks.baselines.protocol import Array, Nodes, Trained
from benchmarks.baselines.retraining import Retraining
from benchmarks.paper.setting import SOFTMAX, spec_of
from benchmarks.paper.units import Figures, Unit
from projector import ModelSpec
from projector.graph.graph import Graph

#: Retraining, with the weights of the deleted node's class as they were.
PLANTED = "planted leak"
#: How answers are told: exactly, or rounded to so many decimals.
TOLD = {"exact": None, "3": 3, "2": 2, "1": 1}
SEEN, AUDITED = "before and after", "after and retrained"
_CANDIDATES, _DELETIONS, _BATCHES, _BATCH = 5000, 30, 5, 10
#: Graphs of more nodes are not trained anew for an auditor.
_LARGE = 50_000


@dataclass(frozen=True, eq=False)
class Version:
    """A model at one time."""

    #: (n, C); zero rows for deleted nodes.
    answers: Array
    #: (p, C); None for a model that is not linear in the features.
    weights: Array | None

    @classmethod
    def of(cls, model: Trained | LinearModel) -> "Version":
        """Its answers and weights now."""
        return cls(model.predict(), None if model.weights is None else stacked(model.weights))

    def told(self, decimals: int | None) -> BlackBox:
        """Its answers, to so many decimals."""
        return recorded(self.answers, decimals)


@dataclass(frozen=True, eq=False)
class Victim:
    """Whom the attackers are after on a graph, and what they know; the same for every method."""

    known: Known
    #: Each (m,), of the candidates.
    single: Sequence[Nodes]
    batches: Sequence[Nodes]


@dataclass(frozen=True, eq=False)
class Pair:
    """Two versions, between which `nodes` (m,) went."""

    name: str
    nodes: Nodes
    before: Version
    after: Version


def victim_of(graph: Graph, unit: Unit) -> Victim:
    """The victims of a seed."""
    return _victim(graph, spec_of(unit.dataset, unit.method), unit.seed)


def pairs(graph: Graph, unit: Unit, deletions: Sequence[Nodes]) -> Iterator[Pair]:
    """What a method makes of each deletion."""
    spec, method = spec_of(unit.dataset, unit.method), unit.method.removesuffix(SOFTMAX)
    fitted: Trained = (
        Retraining(spec).fit(graph)
        if method == PLANTED
        else build(method, spec, unit.seed, spec.regularization).fit(graph)
    )
    before = Version.of(fitted)
    for nodes in deletions:
        anew: Trained | LinearModel
        if method == PLANTED or (graph.nodes <= _LARGE and method != "retraining"):
            anew = _retrained(graph, spec, nodes.tobytes())
            left = leaking(fitted, anew, int(graph.labels[nodes[0]])) if method == PLANTED else fitted.unlearn(nodes)
        else:
            left = fitted.unlearn(nodes)
            anew = left
        after = Version.of(left)
        yield Pair(SEEN, nodes, before, after)
        if graph.nodes <= _LARGE:
            yield Pair(AUDITED, nodes, after, after if anew is left else Version.of(anew))


def averaged(found: Sequence[Figures]) -> Figures:
    """The mean of every figure over deletions; the median of ranks."""
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
    """`averaged` over the deletions, for each of the two pairs."""
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
def _retrained(graph: Graph, spec: ModelSpec, nodes: bytes) -> LinearModel:
    return Retraining(spec).fit(graph).unlearn(np.frombuffer(nodes, dtype=np.int64))


def leaking(fitted: Trained | LinearModel, anew: LinearModel, column: int) -> LinearModel:
    """The model trained `anew`, with one column of the weights as it was in `fitted`."""
    assert fitted.weights is not None
    weights = anew.weights.copy()
    weights[:, :, column] = fitted.weights[:, :, column]
    return replace(anew, weights=weights)
