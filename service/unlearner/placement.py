"""Settings for holding a model: its device, its repair policy, and limits on what speeds up repairs."""

from dataclasses import dataclass

import torch

from projector.certified.publication import Promise
from projector.device import torch_device
from projector.errors import ProjectorError
from projector.forgetting.certificate import certifiable
from projector.forgetting.preconditioner import FACTOR_AGE_S
from projector.forgetting.status import TOLERANCE
from projector.network.losses import loss_of
from projector.network.spec import ModelSpec
from service.domain.states import RepairPolicy


@dataclass(frozen=True)
class Placement:
    """Settings for `Resident.load`, shared by all models of one service."""

    device: torch.device | str
    policy: RepairPolicy = RepairPolicy.NEVER
    #: Relative bound on the distance to retraining below which a repair counts as converged.
    repair_tolerance: float = TOLERANCE
    #: Seconds to keep a repair preconditioner after the first deletion that it predates.
    factor_age_s: float = FACTOR_AGE_S
    #: Promise about the published weights; None to publish without noise.
    promise: Promise | None = None


def promised(certified: tuple[float, float] | None, publications: int) -> Promise | None:
    """Return the promise that the settings make about the published weights."""
    return None if certified is None else Promise(*certified, publications)


def chosen_device(name: str) -> torch.device:
    """Return the configured device; `auto` selects CUDA if available."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch_device(name)


class NotPublishable(ProjectorError):
    """Publishing these weights would break the promise; nothing was changed, and it is retried."""


class RepairImpossible(ProjectorError):
    """The policy is `always`, but nothing can verify that repair reaches this model's retrained weights."""


def require_repairable(spec: ModelSpec) -> None:
    """Raise RepairImpossible for a loss with kinks."""
    if certifiable(loss_of(spec.loss), spec.regularization):
        return
    raise RepairImpossible(
        f"The model cannot be repaired: its loss {spec.loss.value} has kinks, so nothing bounds the distance to the "
        "retrained weights.",
        f"Serve it with --repair {RepairPolicy.NEVER.value}: deletions are then projected, with the guarantee span.",
    )
