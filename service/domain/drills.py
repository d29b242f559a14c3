"""Drills: deletions of canaries. They show that deletion works, because the canaries' weights can be read directly."""

from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from service.domain.states import RequestStatus

#: Largest remaining norm of a canary column, relative to the norm before: exactly 0, or rounding.
MOST_LEFT = 1e-12


@dataclass(frozen=True)
class NewDrill:
    """A drill to record together with its request."""

    cohort: int
    #: The model's newest drill when the cohort was chosen. If a newer one exists, nothing is recorded.
    after: UUID | None


@dataclass(frozen=True)
class Drill:
    """The deletion of one cohort of canaries, and the weights read before and after."""

    request_id: UUID
    model: str
    #: Counted from 1, in the order of the model's canary columns.
    cohort: int
    requested_at: datetime
    #: Status and times of its request.
    status: RequestStatus
    applied_at: datetime | None = None
    completed_at: datetime | None = None
    failed_at: datetime | None = None
    #: Norm of the cohort's rows of W before and after; None until applied, or if it could not be read.
    channel_norm_before: float | None = None
    channel_norm_after: float | None = None
    #: When an import replaced the drilled model; None while that model is served.
    model_replaced_at: datetime | None = None

    @property
    def is_open(self) -> bool:
        """Whether its request is still open."""
        return self.status in (RequestStatus.QUEUED, RequestStatus.APPLIED)

    @property
    def passed(self) -> bool | None:
        """Whether the column had weight and now has none, on disk too; None while open or if cancelled."""
        if self.status is RequestStatus.FAILED:
            return False
        if self.status is not RequestStatus.COMPLETED:
            return None
        before, after = self.channel_norm_before, self.channel_norm_after
        return before is not None and after is not None and before > 0.0 and after <= MOST_LEFT * before

    @property
    def finding(self) -> str:
        """The result in a plain sentence, which also names an earlier model if the drill ran on one."""
        if self.model_replaced_at is None or self.passed is None:
            return self._result
        moment = self.model_replaced_at.astimezone(UTC)
        return (
            f"{self._result} This was measured on the model served before the import of {moment:%Y-%m-%d %H:%M} UTC "
            "and shows nothing about the one served now."
        )

    @property
    def _result(self) -> str:
        if self.status is RequestStatus.CANCELLED:
            return "The drill was cancelled before the unlearner took it up."
        if self.status is RequestStatus.FAILED:
            return "The deletion failed; its request says why."
        if self.is_open:
            return "The canaries are being deleted."
        before, after = self.channel_norm_before, self.channel_norm_after
        if before is None or after is None:
            return "The test column could not be read: another request had deleted canaries of this cohort."
        if before == 0.0:
            return "The test column had no weight to begin with, so this drill shows nothing."
        if self.passed:
            return f"The weight on the test column fell from {before:.4g} to {after:.4g}."
        return f"{after:.4g} of {before:.4g} is left on the test column: the model has not forgotten it."
