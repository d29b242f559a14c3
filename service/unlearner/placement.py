"""How a model is held: where, whether its deletions are repaired, and what helps with that."""

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
    """Given to `Resident.load`, and the same for every model that one service holds."""

    device: torch.device | str
    policy: RepairPolicy = RepairPolicy.NEVER
    #: The relative bound on the distance to retraining up to which a repair counts as converged.
    repair_tolerance: float = TOLERANCE
    #: Seconds for which a preconditioner of repairs may be kept after the first deletion that it predates.
    factor_age_s: float = FACTOR_AGE_S
    #: What is promised of the weights that are published; None where they are published as they are.
    promise: Promise | None = None


def promised(certified: tuple[float, float] | None, publications: int) -> Promise | None:
    """What the settings promise of the weights that are published."""
    return None if certified is None else Promise(*certified, publications)


def chosen_device(name: str) -> torch.device:
    """The device that the setting means; `auto` is a CUDA device where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch_device(name)


class NotPublishable(ProjectorError):
    """Weights that would break the promise if they were published; nothing was changed, and it is tried again."""


class RepairImpossible(ProjectorError):
    """The policy `always` for a model whose retrained weights cannot be known to be reached."""


def require_repairable(spec: ModelSpec) -> None:
    """Raises RepairImpossible for a loss with kinks."""
    if certifiable(loss_of(spec.loss), spec.regularization):
        return
    raise RepairImpossible(
        f"The model cannot be repaired: its loss {spec.loss.value} has kinks, so nothing bounds the distance to the "
        "retrained weights.",
        f"Serve it with --repair {RepairPolicy.NEVER.value}: deletions are then projected, with the guarantee span.",
    )
