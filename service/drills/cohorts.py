"""The cohorts of canaries of the served model: which are left for drills."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import groupby

from projector.forgetting.canaries import Canaries
from service.domain.kinds import Part
from service.tombstones.lookup import TombstoneLookup


@dataclass(frozen=True)
class Cohorts:
    """How many cohorts of canaries the served model has, and which are left."""

    #: Cohorts at training, and nodes of each; 0 for a model without canaries.
    total: int
    nodes: int
    #: Those of which nothing was deleted, in the order in which drills use them.
    unused: tuple[int, ...]
    #: Those of which a part was deleted by other requests, so that a drill would show less than it says.
    partly_deleted: tuple[int, ...]


class CohortSearch:
    """Looks the canaries up in the graph and among the tombstones."""

    def __init__(
        self,
        canaries: Callable[[], Canaries | None],
        live: Callable[[Sequence[str]], Collection[str]],
        tombstones: TombstoneLookup,
    ) -> None:
        """`canaries` are those of the served model, `live` says which of some ids are live nodes of it.

        Either may raise Unavailable.
        """
        self.canaries = canaries
        self._live = live
        self._tombstones = tombstones

    async def __call__(self) -> Cohorts:
        """The cohorts of the served model. Raises Unavailable, also while no model is loaded yet."""
        canaries = self.canaries()
        if canaries is None:
            return Cohorts(0, 0, (), ())
        all_of_them = {cohort: canaries.cohort_ids(cohort) for cohort in range(1, canaries.cohorts + 1)}
        left = frozenset(self._live([node for cohort_nodes in all_of_them.values() for node in cohort_nodes]))
        live = {cohort: [node for node in nodes if node in left] for cohort, nodes in all_of_them.items()}
        # A canary without its features has left the column, and is a node of the graph still.
        nodes = [node for cohort_nodes in live.values() for node in cohort_nodes]
        bare = await self._tombstones.find(Part.FEATURES, nodes)
        whole = {cohort: sum(node not in bare for node in nodes) for cohort, nodes in live.items()}
        return Cohorts(
            canaries.cohorts,
            canaries.nodes,
            unused=tuple(cohort for cohort, count in whole.items() if count == canaries.nodes),
            partly_deleted=tuple(cohort for cohort, nodes in live.items() if nodes and whole[cohort] < canaries.nodes),
        )


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers in words, runs of them as `3 to 7`."""
    runs = [[number for _, number in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
