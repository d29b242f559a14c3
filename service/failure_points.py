"""The places at which a crash is tried: before and after each durable step, and inside those that have parts.

Every activity says where it is by calling `reached`, which does nothing. The tests of faults run the service in a
process of their own in which it is replaced by one that kills the service, or a server it uses, at a chosen point; so
modules call it as `failure_points.reached`. The names are listed, step by step, in docs/architecture.md.
"""

from enum import StrEnum


class FailurePoint(StrEnum):
    """Where a process is, by what it has just done or is about to do; the number is the step's."""

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
    COMMITTED = "6 committed"  # pointer, batch, tombstones
    SWAPPED = "7 swapped"  # CURRENT
    APPLYING = "8 applying"
    APPLIED = "8 applied"  # status and events
    COEFFICIENTS_WRITTEN = "9 coefficients written"
    BASE_ERASED = "9 base erased"
    ERASED = "9 erased"  # older versions are gone as well
    MEASURED = "10 measured"
    COMPLETING = "10 completing"
    COMPLETED = "10 completed"  # status and events; ciphertexts dropped
    KEYS_DESTROYED = "10 keys destroyed"
    ACKNOWLEDGED = "10 acknowledged"  # the stream has forgotten the entries

    REPAIR_COMPUTED = "repair computed"
    REPAIR_WRITTEN = "repair written"
    REPAIR_COMMITTING = "repair committing"
    REPAIR_COMMITTED = "repair committed"
    REPAIR_SWAPPED = "repair swapped"
    REPAIR_COEFFICIENTS_WRITTEN = "repair coefficients written"
    REPAIR_ERASED = "repair erased"
    REPAIR_FINISHED = "repair finished"

    IMPORT_STAGED = "import staged"
    IMPORT_COMMITTING = "import committing"
    IMPORT_COMMITTED = "import committed"
    IMPORT_INSTALLED = "import installed"
    IMPORT_ERASED = "import erased"
    IMPORT_COMPLETED = "import completed"

    RECOVERY_LEASED = "recovery leased"
    RECOVERY_COMPUTED = "recovery computed"
    RECOVERY_WRITTEN = "recovery written"
    RECOVERY_COMMITTING = "recovery committing"
    RECOVERY_COMMITTED = "recovery committed"
    RECOVERY_SWAPPED = "recovery swapped"
    RECOVERY_COEFFICIENTS_WRITTEN = "recovery coefficients written"
    RECOVERY_ERASED = "recovery erased"
    RECOVERY_REQUESTS_ENDED = "recovery requests ended"
    RECOVERY_FINISHED = "recovery finished"

    LEASED = "start leased"
    POINTER_READ = "start pointer read"
    LOADED = "start loaded"
    RESUMED = "start resumed"


def reached(point: FailurePoint) -> None:
    """Say that the process has come to `point`."""
