"""Attack results for one deletion, by the number of queried nodes and by the rounding of answers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.attacks.black_box import recorded
from benchmarks.attacks.identification import matched_filter, neighbours
from benchmarks.attacks.knowledge import Known
from benchmarks.attacks.ranking import first
from benchmarks.attacks.reconstruction import change_of_weights, changed_rows, deleted_row, nearest
from benchmarks.attacks.rehearsal import Rehearsal, Rehearsed
from benchmarks.baselines.linear import propagation, representation
from benchmarks.baselines.protocol import Nodes
from benchmarks.observer.observed import Deletion
from projector import ModelSpec
from projector.graph.graph import Graph

#: Size of a batch of deletions.
BATCH = 16
#: Number of rehearsals for each size.
_REHEARSALS = 8
#: The rounding of answers, and the number of queried nodes.
ROUNDINGS: Mapping[str, int | None] = {"full": None, "3": 3, "2": 2, "1": 1}
ASKED: Mapping[str, int | None] = {"100": 100, "1,000": 1000, "all": None}


@dataclass(frozen=True)
class Case:
    """The attacker's setting."""

    deleted: int
    asked: str
    rounding: str

    def __str__(self) -> str:
        return f"{self.deleted} deleted, {self.asked} asked, {self.rounding} decimals"


class Attackers:
    """Attackers on one model's deletions. Each case has its own attacker, which rehearses once."""

    def __init__(self, graph: Graph, spec: ModelSpec, candidates: Nodes, seed: int, sigma: float) -> None:
        """They know all nodes except the `candidates` (k,) of `graph`, and draw the nodes to query from `seed`.

        `sigma` is the standard deviation of the noise in published weights, as `GET /model` reports it.
        """
        known = Known.of(graph, spec, candidates)
        order = np.random.default_rng(seed).permutation(known.asked)
        #: Public nodes, (a,).
        self.public = known.asked
        #: Knowledge by the number of queried nodes, on the graph before the next deletion.
        self._known = {asked: replace(known, asked=np.sort(order[:most])) for asked, most in ASKED.items()}
        self._rehearsed = dict[Case, Rehearsed]()
        for deleted in (1, BATCH):
            random = np.random.default_rng(seed)
            rehearsals = [Rehearsal.drawn(graph, known, deleted, random, sigma) for _ in range(_REHEARSALS)]
            for asked, each in self._known.items():
                for rounding, decimals in ROUNDINGS.items():
                    self._rehearsed[Case(deleted, asked, rounding)] = Rehearsed.by(rehearsals, each, decimals)
        self._labels = graph.labels[candidates]
        self._live = np.ones(candidates.size, dtype=np.bool_)

    def figures(self, deletion: Deletion, left: Graph) -> Iterator[tuple[Case, dict[str, float | None]]]:
        """Yield the figures of each case for a deletion that leaves the graph `left`. Call it in the order of
        deletions.

        `…_first` is the probability that a deleted node ranks first, and `chance` is that of a random candidate. The
        others are cosines to the deleted node's earlier row, or the nearest one in a batch. Regression needs all
        digits: it fails if most answers did not change.
        """
        count = deletion.nodes.size
        some = self._known["all"]
        H, P = representation(left, some.spec, np.arange(left.nodes)), propagation(left, some.spec)
        true, rows = np.isin(some.candidates, deletion.nodes), some.H[deletion.nodes]
        for asked, known in self._known.items():
            self._known[asked] = later = known.on(H, P)
            for rounding, decimals in ROUNDINGS.items():
                case = Case(count, asked, rounding)
                versions = recorded(deletion.before, decimals), recorded(deletion.after, decimals)
                scores = matched_filter(*versions, known, self._labels), neighbours(*versions, known)
                by_filter, by_neighbours = (first(np.where(self._live, each, -np.inf), true) for each in scores)
                guess = self._rehearsed[case].row(*versions, known, count)
                regression = None
                if decimals is None:
                    regression = nearest(deleted_row(change_of_weights(*versions, known), known, count), rows)
                yield (
                    case,
                    {
                        "chance": float(true.sum() / self._live.sum()),
                        "filter_first": by_filter,
                        "neighbours_first": by_neighbours,
                        "regression": regression,
                        "rehearsed": nearest(guess, rows),
                        "changed": nearest(changed_rows(*versions, later), rows),
                        "mean": nearest(known.mean, rows),
                    },
                )
        self._live &= ~true
