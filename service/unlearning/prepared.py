"""What was computed beside the committed state and may become it: a batch, or a finished repair."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from projector.certified.publication import Publication
from projector.forgetting.batch import ModelState
from projector.forgetting.live_graph import LiveGraph
from projector.forgetting.repair import RepairOutcome, RepairRun
from projector.forgetting.update import NotFinite, Updated, require_finite
from service.domain.snapshot import Snapshot


@dataclass(frozen=True, eq=False)
class Prepared(Updated):
    """A batch computed beside the committed state: what would be committed, and what was measured."""

    #: How it would be published; None where it would be as it is.
    publication: Publication | None
    snapshot: Snapshot


@dataclass(frozen=True, eq=False)
class PreparedRepair:
    """A finished repair of the committed state, as the version that would follow it."""

    state: ModelState
    outcome: RepairOutcome
    publication: Publication | None
    snapshot: Snapshot
    repair: RepairRun


def snapshot_of(state: ModelState, live_graph: LiveGraph, logits: Tensor | None = None) -> Snapshot:
    """What `state` predicts; `logits` (n, C) where they are known."""
    return Snapshot(state.version, live_graph.probabilities(state, logits), state.live, live_graph.propagator.edges)


def finite(state: ModelState, snapshot: Snapshot) -> Snapshot:
    """`snapshot`, once it and `state`, whose predictions it holds, are known to be finite; NotFinite otherwise."""
    require_finite(state)
    if not np.isfinite(snapshot.probabilities).all():
        raise NotFinite("The batch would make predictions that are not finite; it was not applied.")
    return snapshot
