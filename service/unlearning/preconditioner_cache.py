"""The preconditioner that the next repair begins with, made in idle time."""

import time
from collections.abc import Iterator

from projector.forgetting.optimum import stacked
from projector.forgetting.preconditioner import Preconditioner
from projector.solvers.preconditioners import Inverse, preconditioner_steps
from service.unlearning.committed import Committed


class PreconditionerCache:
    """That for the committed version, its own or one that predates a deletion and may stay for a while."""

    def __init__(self, committed: Committed) -> None:
        self._committed = committed
        self._preconditioner: Preconditioner | None = None
        self._making: Iterator[Inverse | None] | None = None
        #: Why none is made for this version, once that was asked.
        self._why_none: str | None = None
        self._judged = False

    def usable(self) -> Preconditioner | None:
        """The preconditioner; one that may not stay any longer leaves the memory."""
        if self._preconditioner is not None and self._preconditioner.expired:
            self._preconditioner = None
        return self._preconditioner

    def keep(self, preconditioner: Preconditioner | None) -> None:
        """Another version is the committed one, and this all that is left from before; one under way is given up."""
        self._preconditioner, self._making, self._judged = preconditioner, None, False

    @property
    def due(self) -> bool:
        """Whether `advance` has something to do."""
        usable = self.usable()
        if usable is not None and usable.fresh:
            return False
        return self._making is not None or self.why_none is None

    @property
    def why_none(self) -> str | None:
        """Why none is made for this version, and repairs go without; None if one is."""
        if not self._judged:
            committed = self._committed
            free = committed.free_bytes
            free = None if free is None else free + committed.training_rows.held_bytes
            self._why_none = committed.training_rows.why_no_preconditioner(committed.state.classes, free)
            self._judged = True
        return self._why_none

    def advance(self, until: float) -> None:
        """Makes it at the committed weights, from what remains, until `time.monotonic()` reaches `until`.

        When that fails, it is not tried again on this version.
        """
        if self._making is None:
            self._making = self._steps()
        try:
            while self._making is not None and time.monotonic() < until:
                inverse = next(self._making)
                if inverse is not None:
                    self._preconditioner, self._making = Preconditioner(inverse), None
        except Exception as error:
            self._making = None
            self._why_none, self._judged = f"it could not be made: {error}", True
            raise

    def _steps(self) -> Iterator[Inverse | None]:
        committed = self._committed
        rows = committed.training_rows
        for _ in rows.steps():
            yield None
        objective = rows.objective(committed.regularization)
        point = objective.at(stacked(committed.state))
        yield from preconditioner_steps(objective, point, rows, committed.live_graph.factorises)
