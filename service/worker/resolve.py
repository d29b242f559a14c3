"""Which rows each request of a batch deletes: pure, from what is live, what is tombstoned and who came first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from service.domain.records import QueuedRequest, Targets


@dataclass(frozen=True)
class Claimed:
    """A queued request with its targets opened."""

    request: QueuedRequest
    targets: Targets


@dataclass(frozen=True, eq=False)
class Deletion:
    """A request that has rows to delete in this batch."""

    claimed: Claimed
    #: Row numbers, (m,), in no other deletion of the batch.
    rows: NDArray[np.int64]
    #: The external ids of `rows`.
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Resolution:
    """What is to be done with each claimed request."""

    deletions: tuple[Deletion, ...]
    #: Requests with nothing left to do, and the earlier request that did the last of it.
    already_deleted: Mapping[UUID, UUID]
    #: Requests whose remaining nodes are all deleted by others of this batch: settled once that is applied.
    deferred: tuple[Claimed, ...]
    #: Requests that name nodes this model has never had, with how many.
    unknown: Mapping[UUID, int]


def resolve(claimed: Sequence[Claimed], rows: Mapping[str, int], deleted_by: Mapping[str, UUID]) -> Resolution:
    """Sorts `claimed`, the earliest first, by what there is to do.

    `rows` maps the external ids of live nodes to rows, `deleted_by` those of tombstoned nodes to their request.
    """
    taken: set[str] = set()
    deletions: list[Deletion] = []
    already: dict[UUID, UUID] = {}
    deferred: list[Claimed] = []
    unknown: dict[UUID, int] = {}
    for each in claimed:
        live = [node for node in each.targets.nodes if node in rows]
        strange = sum(node not in rows and node not in deleted_by for node in each.targets.nodes)
        own = tuple(node for node in live if node not in taken)
        if strange:
            unknown[each.request.id] = strange
        elif own:
            taken.update(own)
            deletions.append(Deletion(each, np.array([rows[node] for node in own], dtype=np.int64), own))
        elif live:
            deferred.append(each)
        else:
            already[each.request.id] = deleted_by[each.targets.nodes[-1]]
    return Resolution(tuple(deletions), already, tuple(deferred), unknown)
