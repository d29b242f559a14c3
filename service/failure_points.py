"""The places between durable steps, and inside steps that have parts: tests inject crashes there, and traces show them.

Each activity reports its place by calling `reached`. Fault tests run the service in a separate process and replace
`reached` by a function that kills the service, or one of its servers, at a chosen point. Modules therefore call it as
`failure_points.reached`. docs/architecture.md lists the names step by step.
"""

from collections.abc import Callable
from contextvars import ContextVar
from enum import StrEnum

from service.domain.states import Cause


class FailurePoint(StrEnum):
    """A place in the process, named by the action just done or about to start; the number is the step's.

    From `COMPUTED` on, `reached` also receives the cause of the version being made.
    """

    # Each comment says what has become durable at that point; points without one add nothing to the point before.
    ACCEPTING = "1 accepting"
    KEYS_RESERVED = "1 keys reserved"  # the keys of the encrypted id lists
    ACCEPTED = "1 accepted"  # request and outbox row; the caller has no response yet
    PUBLISHING = "2 publishing"
    PUBLISHED = "2 published"  # the stream's entries; the outbox still has the rows
    RELAYED = "2 relayed"  # the outbox has deleted them
    CLAIMED = "3 claimed"  # the stream has delivered the entries to this consumer
    BATCHED = "3 batched"
    COMPUTED = "4 computed"
    WRITTEN = "5 written"  # the folder of the new version
    COMMITTING = "6 committing"
    COMMITTED = "6 committed"  # pointer, version, the rows of its cause
    SWAPPED = "7 swapped"  # the CURRENT file
    INSTALLED = "7 installed"  # imports only: the new folder has replaced the served one
    SHOWN = "7 shown"  # to prediction readers
    APPLYING = "8 applying"
    APPLIED = "8 applied"  # batches only: status and events
    COEFFICIENTS_WRITTEN = "9 coefficients written"
    GROWING = "9 growing"  # what was deleted is gone; what joined is only in the version's folder
    ERASED = "9 erased"
    MEASURED = "10 measured"
    SECURED = "10 secured"  # the entry of the erasure ledger, if any
    COMPLETING = "10 completing"
    COMPLETED = "10 completed"  # the version is finished; for batches: status, events, ciphertexts dropped
    KEYS_DESTROYED = "10 keys destroyed"
    ACKNOWLEDGED = "10 acknowledged"  # the stream has deleted the entries

    # Outside the steps.
    CANCELLED = "cancelled"  # status, and ciphertext dropped; its key still exists
    KEYS_EMPTIED = "keys emptied"  # keys of dropped ciphertexts, whose rows still name the slots
    WEBHOOK_CLAIMED = "webhook claimed"
    WEBHOOK_ANSWERED = "webhook answered"  # the receiver has it; not yet recorded here

    LEASED = "start leased"
    POINTER_READ = "start pointer read"
    LOADED = "start loaded"
    RESUMED = "start resumed"


#: Called with each point that the current activity reaches, if it is traced.
observer: ContextVar[Callable[[FailurePoint], None] | None] = ContextVar("observer", default=None)


def reached(point: FailurePoint, cause: Cause | None = None) -> None:
    """Report that the process has reached `point` while making a version of `cause`."""
    observed = observer.get()
    if observed is not None:
        observed(point)
