"""The places at which a crash is tried: before and after each durable step, and inside those that have parts.

Every activity says where it is by calling `reached`, which does nothing. The tests of faults run the service in a
process of their own in which it is replaced by one that kills the service, or a server it uses, at a chosen point; so
modules call it as `failure_points.reached`. The names are listed, step by step, in docs/architecture.md.
"""

from enum import StrEnum

from service.domain.states import Cause


class FailurePoint(StrEnum):
    """Where a process is, by what it has just done or is about to do; the number is the step's.

    From `COMPUTED` on it is told of which cause the version is that is being made.
    """

    # What is durable from here on is said behind each; nothing more than at the point before where nothing is said.
    ACCEPTING = "1 accepting"
    KEYS_RESERVED = "1 keys reserved"  # the keys of the encrypted id lists
    ACCEPTED = "1 accepted"  # request and outbox row; the caller has no answer yet
    PUBLISHING = "2 publishing"
    PUBLISHED = "2 published"  # the stream's entries; the outbox still has the rows
    RELAYED = "2 relayed"  # the outbox has forgotten them
    CLAIMED = "3 claimed"  # the entries are delivered to this consumer
    BATCHED = "3 batched"
    COMPUTED = "4 computed"
    WRITTEN = "5 written"  # the folder of the new version
    COMMITTING = "6 committing"
    COMMITTED = "6 committed"  # pointer, version, the rows of its cause
    SWAPPED = "7 swapped"  # CURRENT
    INSTALLED = "7 installed"  # of an import: its folder is in the served one's place
    SHOWN = "7 shown"  # to those who ask for predictions
    APPLYING = "8 applying"
    APPLIED = "8 applied"  # of a batch: status and events
    COEFFICIENTS_WRITTEN = "9 coefficients written"
    ERASED = "9 erased"
    MEASURED = "10 measured"
    COMPLETING = "10 completing"
    COMPLETED = "10 completed"  # the version is finished; of a batch, status and events, and ciphertexts dropped
    KEYS_DESTROYED = "10 keys destroyed"
    ACKNOWLEDGED = "10 acknowledged"  # the stream has forgotten the entries

    # Beside the steps.
    CANCELLED = "cancelled"  # status, and ciphertext dropped; its key is there still
    KEYS_EMPTIED = "keys emptied"  # those of dropped ciphertexts, whose rows still name the slots
    WEBHOOK_CLAIMED = "webhook claimed"
    WEBHOOK_ANSWERED = "webhook answered"  # the receiver has it; nothing here says so yet

    LEASED = "start leased"
    POINTER_READ = "start pointer read"
    LOADED = "start loaded"
    RESUMED = "start resumed"


def reached(point: FailurePoint, cause: Cause | None = None) -> None:
    """Say that the process has come to `point`, in the making of a version of a `cause`."""
