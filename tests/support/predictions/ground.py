"""Parts of the services whose predictions are checked: a model, servers, the boot id, and a mistake to make."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from model_store.build import build_model
from model_store.datasets.load import load_dataset
from projector.network.spec import ModelSpec
from tests.support.preloaded import Preloaded

_NODES = 400
_DATASET = f"synthetic:n={_NODES},d=12,classes=3,seed=3"


@dataclass(frozen=True)
class Servers:
    """Postgres and Valkey, and their folder, which names their processes."""

    database_url: str
    redis_url: str
    folder: Path


@dataclass(frozen=True)
class Ground:
    """The parts of sites."""

    preloaded: Preloaded
    #: A trained model; sites serve copies.
    model: Path
    #: Folder of the homes.
    folder: Path
    servers: Servers
    #: The service's mistake, if any; see `mutants`.
    mutant: str | None = None
    #: File with the boot id.
    boot: Path = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "boot", self.folder / "boot-id")
        self.boot.write_text("the first boot\n")

    @property
    def nodes(self) -> Sequence[str]:
        """External ids of the model's nodes."""
        return [str(number) for number in range(_NODES)]

    def reboot(self) -> None:
        """Simulate a reboot for processes that start from now on."""
        self.boot.write_text(f"another boot, after {self.boot.read_text()}")


def trained(folder: Path) -> Path:
    """Train a small model in `folder`, unless it exists; nodes are named by their numbers."""
    if not folder.exists():
        graph = load_dataset(_DATASET, data_dirs=[])
        build_model(graph, ModelSpec(), name="checked", dataset="synthetic", split="full").write(folder)
    return folder
