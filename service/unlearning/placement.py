"""How a model is held: where, whether its deletions are repaired, and what helps with that."""

from dataclasses import dataclass

import torch

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
    """Given to `Resident.load`, and the same for every model that one service holds."""

    device: torch.device | str
    policy: RepairPolicy = RepairPolicy.NEVER
    #: The relative bound on the distance to retraining up to which a repair counts as converged.
    repair_tolerance: float = TOLERANCE
    #: Seconds for which a preconditioner of repairs may be kept after the first deletion that it predates.
    factor_age_s: float = FACTOR_AGE_S


def chosen_device(name: str) -> torch.device:
    """The device that the setting means; `auto` is a CUDA device where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch_device(name)


class RepairImpossible(ProjectorError):
    """The policy `always` for a model whose retrained weights cannot be known to be reached."""


def require_repairable(spec: ModelSpec) -> None:
    """Raises RepairImpossible for a loss with kinks, or without a positive lambda."""
    if certifiable(loss_of(spec.loss), spec.regularization):
        return
    why = (
        f"its loss {spec.loss.value} has kinks"
        if spec.regularization > 0
        else f"its lambda is {spec.regularization:g}, and without regularization there is no unique optimum"
    )
    raise RepairImpossible(
        f"The model cannot be repaired: {why}, so nothing bounds the distance to the retrained weights.",
        f"Serve it with --repair {RepairPolicy.NEVER.value}: deletions are then projected, with the guarantee span.",
    )
