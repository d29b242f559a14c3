"""What the attacks make of one deletion: by how many nodes were asked, and how the answers were told."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from benchmarks.attacks.black_box import recorded
from benchmarks.attacks.identification import matched_filter, neighbours
from benchmarks.attacks.knowledge import Known
from benchmarks.attacks.ranking import first
from benchmarks.attacks.reconstruction import Rehearsed, change_of_weights, changed_rows, deleted_row, nearest
from benchmarks.baselines.protocol import Nodes
from benchmarks.observer.observed import Deletion

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


@dataclass(frozen=True, eq=False)
class Attackers:
    """Those who are after one model's deletions; each case has one, who has rehearsed once."""

    #: What they all know of before the first deletion; asked are all public nodes.
    known: Known
    #: Of the candidates, (k,).
    labels: Nodes
    seed: int

    @cached_property
    def _order(self) -> Nodes:
        return np.random.default_rng(self.seed).permutation(self.known.asked)

    @cached_property
    def _rehearsed(self) -> dict[Case, Rehearsed]:
        return {}

    def _asking(self, known: Known, asked: str) -> Known:
        return replace(known, asked=np.sort(self._order[: ASKED[asked]]))

    def figures(
        self, deletion: Deletion, before: Known, after: Known, live: NDArray[np.bool_]
    ) -> Iterator[tuple[Case, dict[str, float]]]:
        """Each case's, of a deletion; what is known is that of the graphs `before` and `after` it.

        `live` (k,) are the candidates that are left. `…_first` is how probably a deleted node is ranked first, `chance`
        that of a candidate at random; the others are cosines to the deleted node's row of before, of a batch the
        nearest.
        """
        true = np.isin(before.candidates, deletion.nodes)
        rows = before.H[deletion.nodes]
        for asked in ASKED:
            known, later = self._asking(before, asked), self._asking(after, asked)
            for told, decimals in TOLD.items():
                case = Case(deletion.nodes.size, asked, told)
                if case not in self._rehearsed:
                    self._rehearsed[case] = Rehearsed.of(self._asking(self.known, asked), decimals, case.deleted)
                versions = recorded(deletion.before, decimals), recorded(deletion.after, decimals)
                by_filter = matched_filter(*versions, known, self.labels)
                by_neighbours = neighbours(*versions, known)
                regression = deleted_row(change_of_weights(*versions, known), known, case.deleted)
                yield (
                    case,
                    {
                        "chance": float(true.sum() / live.sum()),
                        "filter_first": first(np.where(live, by_filter, -np.inf), true),
                        "neighbours_first": first(np.where(live, by_neighbours, -np.inf), true),
                        "regression": nearest(regression, rows),
                        "rehearsed": nearest(self._rehearsed[case].row(*versions, known, case.deleted), rows),
                        "changed": nearest(changed_rows(*versions, later), rows),
                        "mean": nearest(known.mean, rows),
                    },
                )
