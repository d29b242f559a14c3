"""What the attacks make of one deletion: by how many nodes were asked, and how the answers were told."""

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

#: Nodes that are deleted at a time, where it is not one.
BATCH = 16
#: How often the attackers rehearse each size.
_REHEARSALS = 8
#: How answers are told, and of how many nodes.
TOLD: Mapping[str, int | None] = {"full": None, "3": 3, "2": 2, "1": 1}
ASKED: Mapping[str, int | None] = {"100": 100, "1,000": 1000, "all": None}


@dataclass(frozen=True)
class Case:
    """How an attacker is placed."""

    deleted: int
    asked: str
    told: str

    def __str__(self) -> str:
        return f"{self.deleted} deleted, {self.asked} asked, {self.told} decimals"


class Attackers:
    """Those who are after one model's deletions; each case has one, who has rehearsed once."""

    def __init__(self, graph: Graph, spec: ModelSpec, candidates: Nodes, seed: int, sigma: float) -> None:
        """They know all nodes but the `candidates` (k,) of `graph`, and draw from `seed` whom to ask for.

        `sigma` is the standard deviation of the noise in published weights, as `GET /model` tells it.
        """
        known = Known.of(graph, spec, candidates)
        order = np.random.default_rng(seed).permutation(known.asked)
        #: Public nodes, (a,).
        self.public = known.asked
        #: By how many are asked, on the graph of before the next deletion.
        self._known = {asked: replace(known, asked=np.sort(order[:most])) for asked, most in ASKED.items()}
        self._rehearsed = dict[Case, Rehearsed]()
        for deleted in (1, BATCH):
            random = np.random.default_rng(seed)
            rehearsals = [Rehearsal.drawn(graph, known, deleted, random, sigma) for _ in range(_REHEARSALS)]
            for asked, each in self._known.items():
                for told, decimals in TOLD.items():
                    self._rehearsed[Case(deleted, asked, told)] = Rehearsed.by(rehearsals, each, decimals)
        self._labels = graph.labels[candidates]
        self._live = np.ones(candidates.size, dtype=np.bool_)

    def figures(self, deletion: Deletion, left: Graph) -> Iterator[tuple[Case, dict[str, float | None]]]:
        """Each case's, of a deletion that leaves the graph `left`; deletions are told in their order.

        `…_first` is how probably a deleted node is ranked first, `chance` that of a candidate at random; the others are
        cosines to the deleted node's row of before, of a batch the nearest. Regression is of all digits alone: where
        most answers did not change it has nothing to go by.
        """
        count = deletion.nodes.size
        some = self._known["all"]
        H, P = representation(left, some.spec, np.arange(left.nodes)), propagation(left, some.spec)
        true, rows = np.isin(some.candidates, deletion.nodes), some.H[deletion.nodes]
        for asked, known in self._known.items():
            self._known[asked] = later = known.on(H, P)
            for told, decimals in TOLD.items():
                case = Case(count, asked, told)
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
