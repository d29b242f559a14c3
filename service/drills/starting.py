"""Starting a drill: the next cohort of canaries becomes an ordinary deletion request."""

from dataclasses import dataclass
from typing import ClassVar
from uuid import UUID

from projector.forgetting.canaries import Canaries
from service.db.engine import Engine
from service.db.transactions import transaction
from service.deletions.intake.intake import Intake, NewRequest
from service.domain.drills import Drill, NewDrill
from service.domain.kinds import RequestKind
from service.domain.records import ApiKey, Targets
from service.drills.cohorts import Cohorts, CohortSearch, ranges
from service.drills.repository import DrillOpen, DrillRepository
from service.errors import Conflict, LetheError
from service.observability.metrics import IntakeMetrics
from service.vault.keyring import Keyring
from service.vault.salting import salted

#: What stands for the body of `POST /drills`, which has none: which cohort is next is not the caller's to say.
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
    """A drill that was accepted."""

    drill: Drill
    #: What its request names, with the salts; None once that is forgotten.
    targets: Targets | None
    #: The model's cohorts, that of the drill among them if it was started just now.
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
        #: Call it for what is left of the canaries.
        self.cohorts = cohorts
        self._intake = intake
        self._keyring = keyring
        self._metrics = metrics

    async def newest(self) -> Drill | None:
        """The drill of the model that was asked for last. Raises Unavailable."""
        async with transaction(self.engine) as connection:
            return await DrillRepository(connection).newest(self.model)

    async def start(self, caller: ApiKey, *, newest: Drill | None, idempotency_key: str | None = None) -> StartedDrill:
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
                # All of them are there, or were a moment ago: what goes meanwhile, the unlearner finds to be gone.
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
        # Not read from the database: an outage now would be told as if nothing had been recorded.
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
    """What became of the cohorts, in a sentence that names those that were deleted in part."""
    text = f"All {cohorts.total} cohorts of canaries are used."
    if cohorts.partly_deleted:
        text += f" No drill can use {ranges(cohorts.partly_deleted)}: other requests deleted some of their nodes."
    return text
