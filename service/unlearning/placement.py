"""How a model is held: where, whether its deletions are repaired, and what helps with that."""

from dataclasses import dataclass

import torch

from service.domain.states import RepairPolicy
from service.unlearning.newton_process import NewtonProcess


@dataclass(frozen=True)
class Placement:
    """Given to `Resident.load`, and the same for every model that one service holds."""

    device: torch.device | str
    policy: RepairPolicy = RepairPolicy.NEVER
    #: None: all is computed in this process.
    process: NewtonProcess | None = None
