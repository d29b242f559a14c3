"""Starting a drill: the next cohort of canaries becomes an ordinary deletion request."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar
from uuid import UUID

from projector.forgetting.canaries import Canaries
from service.api.deletion_schemas import NodeDeletion
from service.api.services import Services
from service.api.submission import DRILL_BODY, submit
from service.db.drills import DrillOpen, DrillRepository
from service.db.transactions import transaction
from service.domain.drills import Drill, DrillTrigger, NewDrill
from service.domain.records import ApiKey, Targets
from service.domain.states import RequestKind
from service.errors import Conflict, LetheError


class NoCanaries(Conflict):
    """The served model was trained without canaries."""

    slug: ClassVar[str] = "no-canaries"
    title: ClassVar[str] = "No canaries"


class CohortsUsedUp(Conflict):
    """Every cohort of canaries was deleted, wholly or in part."""

    slug: ClassVar[str] = "cohorts-used-up"
    title: ClassVar[str] = "No cohort left"


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


@dataclass(frozen=True)
class StartedDrill:
    """A drill that was accepted."""

    drill: Drill
    #: What its request names, with the salts; None once that is forgotten.
    targets: Targets | None
    #: The model's cohorts, that of the drill among them if it was started just now.
    cohorts: Cohorts


async def newest_drill(services: Services) -> Drill | None:
    """The drill of the served model that was asked for last. Raises Unavailable."""
    async with transaction(services.engine) as connection:
        return await DrillRepository(connection).newest(services.model)


async def find_cohorts(services: Services) -> Cohorts:
    """The cohorts of the served model. Raises Unavailable, also while no model is loaded yet."""
    canaries = services.canaries()
    if canaries is None:
        return Cohorts(0, 0, (), ())
    live = {
        cohort: [node for node in canaries.cohort_ids(cohort) if services.reader.knows(node)]
        for cohort in range(1, canaries.cohorts + 1)
    }
    # A canary without its features has left the column, and is a node of the graph still.
    nodes = [node for cohort_nodes in live.values() for node in cohort_nodes]
    bare = await services.tombstones.find(RequestKind.FEATURES, nodes)
    whole = {cohort: sum(node not in bare for node in nodes) for cohort, nodes in live.items()}
    return Cohorts(
        canaries.cohorts,
        canaries.nodes,
        unused=tuple(cohort for cohort, count in whole.items() if count == canaries.nodes),
        partly_deleted=tuple(cohort for cohort, nodes in live.items() if nodes and whole[cohort] < canaries.nodes),
    )


async def start_drill(
    services: Services,
    caller: ApiKey,
    trigger: DrillTrigger,
    *,
    newest: Drill | None,
    idempotency_key: str | None = None,
) -> StartedDrill:
    """Ask for the deletion of the first cohort that is whole.

    `newest` is the model's newest drill, read before this call: should there be another by now, nothing is started.
    With an idempotency key that a drill was started with before, that drill is returned.

    Raises:
        NoCanaries, CohortsUsedUp: there is nothing to delete.
        DrillOpen: a drill is under way.
        Conflict: the idempotency key was used for something else.
        QueueFull, Unavailable: it cannot be taken now; nothing is started.
    """
    if idempotency_key is not None:
        digest = services.keyring.body_digest(DRILL_BODY)
        earlier = await services.intake.find(caller.id, idempotency_key, digest)
        if earlier is not None:
            drill = await _recorded(services, earlier.request.id)
            return StartedDrill(drill, earlier.targets, await find_cohorts(services))
    canaries = services.canaries()
    if canaries is None:
        raise NoCanaries(
            f"The model {services.model} has no canaries, so there is nothing whose deletion could be shown.",
            "Train it with `./lethe train --canaries K`, and import it.",
        )
    if newest is not None and newest.is_open:
        raise DrillOpen
    cohorts = await find_cohorts(services)
    if not cohorts.unused:
        raise CohortsUsedUp(
            _used_up(cohorts), "Train the model again with `./lethe train --canaries K`, and import it."
        )
    return await _start(services, caller, trigger, canaries, cohorts, newest, idempotency_key)


async def _start(
    services: Services,
    caller: ApiKey,
    trigger: DrillTrigger,
    canaries: Canaries,
    cohorts: Cohorts,
    newest: Drill | None,
    idempotency_key: str | None,
) -> StartedDrill:
    cohort = cohorts.unused[0]
    body = NodeDeletion(kind="node", nodes=list(canaries.cohort_ids(cohort)), reference=f"drill {cohort}")
    new = NewDrill(cohort, trigger, None if newest is None else newest.request_id)
    submission = await submit(services, body, caller, idempotency_key, new)
    if submission.replayed:
        return StartedDrill(await _recorded(services, submission.request.id), submission.targets, cohorts)
    services.metrics.received(RequestKind.NODE)
    # Not read from the database: an outage now would be told as if nothing had been recorded.
    drill = Drill(
        request_id=submission.request.id,
        model=services.model,
        cohort=cohort,
        trigger=trigger,
        requested_at=submission.request.received_at,
        status=submission.request.status,
    )
    return StartedDrill(drill, submission.targets, cohorts)


async def _recorded(services: Services, request_id: UUID) -> Drill:
    async with transaction(services.engine) as connection:
        drill = await DrillRepository(connection).get(request_id)
    if drill is None:
        raise LetheError(f"Request {request_id} is not recorded as a drill.", "Look at it under /deletions.")
    return drill


def _used_up(cohorts: Cohorts) -> str:
    """What became of the cohorts, in a sentence that names those that were deleted in part."""
    told = f"All {cohorts.total} cohorts of canaries are used."
    if cohorts.partly_deleted:
        told += f" Of {ranges(cohorts.partly_deleted)} a part was deleted by other requests, so no drill can use them."
    return told


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers in words, runs of them as `3 to 7`."""
    runs = [[number for _, number in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
