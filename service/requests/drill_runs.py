"""Start drills, which delete the next cohort of canaries like any request, and build the drill routes' answers."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any, ClassVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from projector.forgetting.canaries import Canaries
from service.access.key_memory import require_kind
from service.access.keyring import Keyring
from service.db.engine import Engine
from service.db.transactions import transaction
from service.domain.drills import Drill, NewDrill
from service.domain.kinds import Part, RequestKind
from service.domain.records import ApiKey, Targets
from service.domain.states import RequestStatus
from service.errors import Conflict, LetheError
from service.log.commitments import salted
from service.observability.metrics import IntakeMetrics
from service.requests.answers import Links, Salts, links_of
from service.requests.drill_rows import DrillOpen, DrillRepository
from service.requests.intake import Intake, NewRequest
from service.requests.tombstones import TombstoneLookup


@dataclass(frozen=True)
class Cohorts:
    """The cohorts of canaries of the served model, and those left."""

    #: Number of cohorts at training, and nodes of each; 0 for a model without canaries.
    total: int
    nodes: int
    #: Cohorts without deletions, in the order in which drills use them.
    unused: tuple[int, ...]
    #: Cohorts that other requests deleted in part, so that a drill would prove less than it claims.
    partly_deleted: tuple[int, ...]


class CohortSearch:
    """Looks up the canaries in the graph and among the tombstones."""

    def __init__(
        self,
        canaries: Callable[[], Canaries | None],
        live: Callable[[Sequence[str]], Collection[str]],
        tombstones: TombstoneLookup,
    ) -> None:
        """`canaries` returns those of the served model, `live` filters ids by its live nodes.

        Either may raise Unavailable.
        """
        self.canaries = canaries
        self._live = live
        self._tombstones = tombstones

    async def __call__(self) -> Cohorts:
        """Return the cohorts of the served model. Raises Unavailable, also while no model is loaded yet."""
        canaries = self.canaries()
        if canaries is None:
            return Cohorts(0, 0, (), ())
        all_of_them = {cohort: canaries.cohort_ids(cohort) for cohort in range(1, canaries.cohorts + 1)}
        left = frozenset(self._live([node for cohort_nodes in all_of_them.values() for node in cohort_nodes]))
        live = {cohort: [node for node in nodes if node in left] for cohort, nodes in all_of_them.items()}
        # A canary without features has left the column but is still a node of the graph.
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
    """Format ascending numbers, with runs as `3 to 7`."""
    runs = [[number for _, number in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


#: Stands for the body of `POST /drills`, which has none: the caller does not choose the cohort.
_BODY = b"POST /drills"


class NoCanaries(Conflict):
    """The served model was trained without canaries."""

    slug: ClassVar[str] = "no-canaries"
    title: ClassVar[str] = "No canaries"


class CohortsUsedUp(Conflict):
    """Every cohort of canaries was deleted, wholly or in part."""

    slug: ClassVar[str] = "cohorts-used-up"
    title: ClassVar[str] = "No cohort left"


@dataclass(frozen=True)
class StartedDrill:
    """An accepted drill."""

    drill: Drill
    #: The targets of its request, with the salts; None once erased.
    targets: Targets | None
    #: The model's cohorts, including that of a drill started just now.
    cohorts: Cohorts


class Drills:
    """The drills of one model."""

    def __init__(
        self,
        engine: Engine,
        model: str,
        intake: Intake,
        keyring: Keyring,
        cohorts: CohortSearch,
        metrics: IntakeMetrics,
    ) -> None:
        self.engine = engine
        self.model = model
        #: Returns the remaining canaries when called.
        self.cohorts = cohorts
        self._intake = intake
        self._keyring = keyring
        self._metrics = metrics

    async def newest(self) -> Drill | None:
        """Return the latest drill of the model. Raises Unavailable."""
        async with transaction(self.engine) as connection:
            return await DrillRepository(connection).newest(self.model)

    async def start(self, caller: ApiKey, *, newest: Drill | None, idempotency_key: str | None = None) -> StartedDrill:
        """Request the deletion of the first complete cohort.

        `newest` is the model's newest drill, read before this call. If there is a newer one by now, nothing is started.
        If the idempotency key has started a drill before, that drill is returned.

        Raises:
            KindNotAllowed, NoCanaries, CohortsUsedUp: the key may not delete nodes, or there is nothing to delete.
            DrillOpen: a drill is running.
            Conflict: the idempotency key was used for something else.
            QueueFull, Unavailable: it cannot be accepted now; nothing is started.
        """
        require_kind(caller, RequestKind.NODE)
        if idempotency_key is not None:
            digest = self._keyring.body_digest(_BODY)
            earlier = await self._intake.find(caller.id, idempotency_key, digest)
            if earlier is not None:
                drill = await self._recorded(earlier.request.id)
                return StartedDrill(drill, earlier.targets, await self.cohorts())
        canaries = self.cohorts.canaries()
        if canaries is None:
            raise NoCanaries(
                f"The model {self.model} has no canaries, so there is nothing to drill.",
                "Train it with `./lethe train --canaries K`, and import it.",
            )
        if newest is not None and newest.is_open:
            raise DrillOpen
        cohorts = await self.cohorts()
        if not cohorts.unused:
            raise CohortsUsedUp(
                _used_up(cohorts), "Train the model again with `./lethe train --canaries K`, and import it."
            )
        new = NewDrill(cohorts.unused[0], None if newest is None else newest.request_id)
        return await self._ask(caller, canaries, cohorts, new, idempotency_key)

    async def _ask(
        self, caller: ApiKey, canaries: Canaries, cohorts: Cohorts, new: NewDrill, idempotency_key: str | None
    ) -> StartedDrill:
        reference = f"drill {new.cohort}"
        accepted = await self._intake.accept(
            NewRequest(
                model=self.model,
                kind=RequestKind.NODE,
                # All of them exist, or did a moment ago: the unlearner finds any that are gone.
                targets=salted(canaries.cohort_ids(new.cohort), reference, self._keyring.new_salt),
                reference=reference,
                api_key_id=caller.id,
                idempotency_key=idempotency_key,
                body_digest=None if idempotency_key is None else self._keyring.body_digest(_BODY),
                drill=new,
            )
        )
        if accepted.replayed:
            return StartedDrill(await self._recorded(accepted.request.id), accepted.targets, cohorts)
        self._metrics.received(RequestKind.NODE)
        # Not read from the database: an outage now would suggest that nothing was recorded.
        drill = Drill(
            request_id=accepted.request.id,
            model=self.model,
            cohort=new.cohort,
            requested_at=accepted.request.received_at,
            status=accepted.request.status,
        )
        return StartedDrill(drill, accepted.targets, cohorts)

    async def _recorded(self, request_id: UUID) -> Drill:
        async with transaction(self.engine) as connection:
            drill = await DrillRepository(connection).get(request_id)
        if drill is None:
            raise LetheError(f"Request {request_id} is not a drill.", "See it under /deletions.")
        return drill


def _used_up(cohorts: Cohorts) -> str:
    """Describe the used cohorts in a sentence that names those deleted in part."""
    text = f"All {cohorts.total} cohorts of canaries are used."
    if cohorts.partly_deleted:
        text += f" No drill can use {ranges(cohorts.partly_deleted)}: other requests deleted some of their nodes."
    return text


_ID = "0197f3c2-6f6e-7c1a-9d55-0d7a5d3b2c11"
_ASKED: dict[str, Any] = {
    "request_id": _ID,
    "cohort": 3,
    "requested_at": "2026-03-02T09:15:04.120000Z",
    "links": {"self": f"/deletions/{_ID}"},
}
_OPEN: dict[str, Any] = _ASKED | {
    "status": "queued",
    "applied_at": None,
    "completed_at": None,
    "failed_at": None,
    "channel_norm_before": None,
    "channel_norm_after": None,
    "passed": None,
    "model_replaced_at": None,
    "finding": "The canaries are being deleted.",
}
_DONE: dict[str, Any] = _ASKED | {
    "status": "completed",
    "applied_at": "2026-03-02T09:15:04.310000Z",
    "completed_at": "2026-03-02T09:15:04.420000Z",
    "failed_at": None,
    "channel_norm_before": 4.125,
    "channel_norm_after": 0.0,
    "passed": True,
    "model_replaced_at": None,
    "finding": "The weight on the test column fell from 4.125 to 0.",
}
_COHORTS: dict[str, Any] = {"total": 12, "nodes": 4, "remaining": 8, "partly_deleted": [2]}


class DrillAnswer(BaseModel):
    """The deletion of one cohort of canaries, and its effect measured in the weights."""

    request_id: UUID = Field(description="The deletion request of the drill.")
    cohort: int
    requested_at: datetime
    status: RequestStatus = Field(description="That of the request.")
    applied_at: datetime | None
    completed_at: datetime | None
    failed_at: datetime | None
    channel_norm_before: float | None = Field(description="Norm of the cohort's rows of the weights before.")
    channel_norm_after: float | None = Field(description="The same after, read from the weights; should be 0.")
    passed: bool | None = Field(description="Null while it is under way, and when it was cancelled.")
    model_replaced_at: datetime | None = Field(
        description="When an import replaced the drilled model; null while it is served."
    )
    finding: str = Field(description="The result in one sentence.")
    links: Links


class CohortsAnswer(BaseModel):
    """The canaries of the served model."""

    total: int = Field(description="Cohorts at training; 0 without canaries.")
    nodes: int = Field(description="Nodes of each.")
    remaining: int = Field(description="Complete cohorts that no running drill uses: the number of drills left.")
    partly_deleted: list[int] = Field(
        description="Cohorts that drills skip because other requests deleted some of their nodes."
    )


class AcceptedDrill(DrillAnswer):
    """An accepted drill; its later state is at `links.self`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                _OPEN
                | {
                    "cohorts": _COHORTS,
                    "salts": {
                        "nodes": {"lethe-canary-5f1d7a84-3-1": "5f1d7a84db00d2fce00b31a7fc73224f"},
                        "reference": "c0535e4be2b79ffd93291305436bf889",
                    },
                }
            ]
        }
    )

    cohorts: CohortsAnswer
    salts: Salts | None = Field(description="They link the receipt to the ids of the canaries; null once erased.")


class DrillsAnswer(BaseModel):
    """The drills of the served model, and the cohorts left for more."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"model": "cora", "cohorts": _COHORTS, "drills": [_DONE]}]}
    )

    model: str
    cohorts: CohortsAnswer
    drills: list[DrillAnswer] = Field(description="Newest first.")


def drill_answer(drill: Drill, *, with_result: bool) -> DrillAnswer:
    """Build the answer for a drill; `with_result` is whether measurements of the weights may be shown."""
    return DrillAnswer(**_fields(drill, with_result=with_result))


def accepted_drill(started: StartedDrill, *, with_result: bool) -> AcceptedDrill:
    """Build the 202 answer; see `drill_answer`."""
    targets = started.targets
    salts = None if targets is None else Salts(nodes=dict(targets.node_salts or {}), reference=targets.reference_salt)
    fields = _fields(started.drill, with_result=with_result)
    return AcceptedDrill(**fields, cohorts=cohorts_answer(started.cohorts, started.drill), salts=salts)


def cohorts_answer(cohorts: Cohorts, newest: Drill | None) -> CohortsAnswer:
    """Build the remaining canaries, without the cohort of a running drill, whose nodes may still exist."""
    taken = newest.cohort if newest is not None and newest.is_open else None
    return CohortsAnswer(
        total=cohorts.total,
        nodes=cohorts.nodes,
        remaining=sum(cohort != taken for cohort in cohorts.unused),
        partly_deleted=[cohort for cohort in cohorts.partly_deleted if cohort != taken],
    )


def _fields(drill: Drill, *, with_result: bool) -> dict[str, Any]:
    named = {name: getattr(drill, name) for name in DrillAnswer.model_fields if name != "links"}
    if not with_result:
        # Measured in the batch, so present before the drill is completed.
        named |= dict.fromkeys(("channel_norm_before", "channel_norm_after"))
        if drill.status is RequestStatus.COMPLETED:
            finding = "The result requires the scope audit:read, since the weights are published with noise."
            named |= {"passed": None, "finding": finding}
    return named | {"links": links_of(drill.request_id)}
