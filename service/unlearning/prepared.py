"""What was computed beside the committed state and may become it: a batch, or a finished repair."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from projector.forgetting.batch import ModelState, Projection
from projector.forgetting.live_graph import LiveGraph
from projector.forgetting.repair import Repair, RepairOutcome
from projector.forgetting.training_rows import TrainingRows
from service.unlearning.snapshot import Snapshot


class NotFinite(ArithmeticError):
    """A batch led to weights, coefficients or predictions that are not finite numbers; nothing was changed."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """A batch computed beside the committed state: what would be committed, and what was measured."""

    #: Nodes that leave, (m,), nodes whose features leave, (l,), and edges that leave, (k, 2).
    nodes: NDArray[np.int64]
    feature_rows: NDArray[np.int64]
    edges: NDArray[np.int64]
    #: With the figures of the weights that would be committed, repaired where `outcome` says so.
    projection: Projection
    outcome: RepairOutcome
    live_graph: LiveGraph
    snapshot: Snapshot
    repair: Repair | None
    training_rows: TrainingRows
    #: How much of the time went into the repair (seconds).
    repair_s: float

    @property
    def state(self) -> ModelState:
        """What would be committed."""
        return self.projection.state


@dataclass(frozen=True, eq=False)
class PreparedRepair:
    """A finished repair of the committed state, as the version that would follow it."""

    state: ModelState
    outcome: RepairOutcome
    snapshot: Snapshot
    repair: Repair


def require_finite(state: ModelState) -> None:
    """Raises NotFinite unless weights and coefficients are finite numbers."""
    parts = [part for span in state.spans for part in (span.W, span.B, span.T)]
    if not all(bool(part.isfinite().all()) for part in parts):
        raise NotFinite("The batch leads to weights or coefficients that are not finite; it was not applied.")


def finite(state: ModelState, snapshot: Snapshot) -> Snapshot:
    """`snapshot`, once it and `state`, whose predictions it holds, are known to be finite; NotFinite otherwise."""
    require_finite(state)
    if not np.isfinite(snapshot.probabilities).all():
        raise NotFinite("The batch leads to predictions that are not finite; it was not applied.")
    return snapshot
