"""Status that an unlearner reports, and the results of readiness checks."""

from dataclasses import dataclass
from enum import StrEnum

from projector.forgetting.status import RepairProgress


class Phase(StrEnum):
    """The unlearner's current activity, for readiness."""

    WAITING_FOR_LEASE = "waiting for the lease"
    LOADING = "loading the model"
    SERVING = "serving"
    HELD_UP = "held up in what it has begun"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Condition:
    """The unlearner's phase, with the reason for a halt or, while it loads or imports, the progress."""

    phase: Phase = Phase.WAITING_FOR_LEASE
    reason: str | None = None


@dataclass(frozen=True)
class Check:
    """Result of one readiness check."""

    name: str
    ok: bool
    #: The finding; when not `ok`, what is wrong.
    detail: str
    #: Remedy; empty when `ok`.
    remedy: str = ""


@dataclass(frozen=True)
class LeaseReport:
    """Status that a lease holder publishes for processes without access to its memory."""

    condition: Condition
    #: Progress of repairing the committed version; None without a repair.
    repair: RepairProgress | None = None
    #: Device of the model; None until known.
    device: str | None = None
    #: Checks that only the holder can make.
    checks: tuple[Check, ...] = ()


@dataclass(frozen=True)
class Holder:
    """Last known status of a lease holder, and whether it still holds the lease."""

    report: LeaseReport
    is_held: bool
    #: Seconds since a holder last reported serving; None if none ever has.
    served_s: float | None
    #: Holders' failures since one last served steadily.
    failures: int = 0
    #: Seconds since the first of these failures.
    failing_s: float = 0.0
