"""What an unlearner says of itself, and how what must work is found to be."""

from dataclasses import dataclass
from enum import StrEnum

from projector.forgetting.status import RepairProgress


class Phase(StrEnum):
    """What the unlearner is doing, for readiness."""

    WAITING_FOR_LEASE = "waiting for the lease"
    LOADING = "loading the model"
    SERVING = "serving"
    HELD_UP = "held up in what it has begun"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Condition:
    """The unlearner's phase and why it does not go on or, while it loads or imports, how far it has come."""

    phase: Phase = Phase.WAITING_FOR_LEASE
    reason: str | None = None


@dataclass(frozen=True)
class Check:
    """One thing that must work for Lethe to be ready."""

    name: str
    ok: bool
    #: What was found; when not `ok`, what is wrong.
    detail: str
    #: What to do about it; empty when `ok`.
    remedy: str = ""


@dataclass(frozen=True)
class LeaseReport:
    """What the holder of a lease tells processes that do not share its memory."""

    condition: Condition
    #: Of the repair of the committed version; None while there is none.
    repair: RepairProgress | None = None
    #: Where the model is; None until that is known.
    device: str | None = None
    #: What it alone can look at.
    checks: tuple[Check, ...] = ()


@dataclass(frozen=True)
class Holder:
    """What is known of a lease: what its last holder told, and whether it is held still."""

    report: LeaseReport
    is_held: bool
    #: Seconds since a holder last said that it serves; None when none ever has.
    served_s: float | None
    #: Failures of holders since one last served steadily.
    failures: int = 0
    #: Seconds since the first of these failures.
    failing_s: float = 0.0
