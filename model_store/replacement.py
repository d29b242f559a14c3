"""Replace a model's folder with a newly trained model's, in crash-safe steps.

    <name>                  the served model
    .<name>.copying-<id>    a copy in progress
    .<name>.import-<id>     a complete, checked copy that the import <id> will make the served model
    .<name>.replaced-<id>   the model that the import <id> replaced, until it is gone from the disk
    .<name>.importing       locked while a copy is made

The database decides which folder counts. This module only moves them.
"""

import fcntl
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from model_store import tombstones
from model_store.disk.durable import make_folders, remove_tree, rename, sync
from model_store.errors import ImportUnderWay, NotAStore
from model_store.store import Store
from model_store.untrusted_folder import require_plain
from model_store.work import Work
from projector.errors import GraphError
from projector.graph.graph import validate_live

_FOLDER = re.compile(r"(?P<stage>copying|import|replaced)-(?P<id>[0-9a-f-]{36})")


class Replacement:
    """The folders of one import beside the served model's."""

    def __init__(self, served: Path, import_id: str) -> None:
        # Replace the target of a link, not the link.
        self.served = served.resolve()
        self.copying, self.staged, self.replaced = (
            self.served.with_name(f".{self.served.name}.{stage}-{import_id}")
            for stage in ("copying", "import", "replaced")
        )

    def stage(self, provide: Callable[[Path], Store], work: Work | None = None) -> Store:
        """Make the staged model from what `provide` writes to its folder argument, checked and durable.

        The check and the wait for the disk are steps of `work`. Raises NotAStore or StoreDamaged if it is not a model
        with matching digests.
        """
        make_folders(self.served.parent)
        try:
            provide(self.copying)
            work = work or Work()
            check_store(self.copying, work)
            work.begin("Waiting for the disk")
            for folder, _, files in os.walk(self.copying):
                for name in files:
                    sync(Path(folder) / name)
                sync(Path(folder))
            rename(self.copying, self.staged)
        finally:
            shutil.rmtree(self.copying, ignore_errors=True)
        return Store.open(self.staged)

    def install(self) -> Store:
        """Make the staged model the served one and return it. Completes what a crash left half done.

        Raises FileNotFoundError, and leaves the served model in place, if another process has done it meanwhile.
        """
        if self.staged.exists():
            if self.served.exists():
                # Keep deletions on record: the database may later be restored from an older backup.
                tombstones.carry(self.served, self.staged)
                rename(self.served, self.replaced)
            try:
                rename(self.staged, self.served)
            except FileNotFoundError:
                # A successor has installed it, so the model just moved away is the new one.
                if not self.served.exists():
                    rename(self.replaced, self.served)
                raise
        return Store.open(self.served)

    def erase_replaced(self) -> None:
        """Remove the replaced model from the disk, durably."""
        self._remove(self.replaced)

    def discard(self) -> None:
        """Remove the staged model from the disk, durably."""
        self._remove(self.staged)

    def _remove(self, folder: Path) -> None:
        if folder.exists():
            remove_tree(folder)
            sync(folder.parent)


def check_store(folder: Path, work: Work | None = None) -> Store:
    """Return the model in an untrusted folder, after reading every array and verifying its digest.

    Reading it and checking its graph are steps of `work`. Raises NotAStore or StoreDamaged, also for what digests do
    not cover: links and devices, files too large to read, and a graph that cannot be trained on.
    """
    require_plain(folder)
    store = Store.open(folder)
    work = work or Work()
    base = store.load_base(work)
    work.begin("Checking the graph")
    state = store.read_version(store.current())
    tombstones.read(folder)
    try:
        validate_live(base.graph, state.live)
    except GraphError as error:
        raise NotAStore(f"{folder} contains an invalid graph. {error.detail}", error.remedy) from error
    return store


def finish_move(served: Path) -> None:
    """Restore a model to its serving path if a crash came between moving one away and moving one in.

    The old model is moved away only once the new one is committed, so the new one is restored. Without a staged model,
    the moved one is itself the new one. Does nothing if there is a model.
    """
    if served.exists():
        return
    moved = [Replacement(served, import_id) for stage, import_id in _beside(served) if stage == "replaced"]
    for one in sorted(moved, key=lambda one: not one.staged.exists())[:1]:
        rename(one.staged if one.staged.exists() else one.replaced, one.served)


def clear_abandoned(served: Path, *, wanted: Collection[str]) -> None:
    """Remove copies for imports other than `wanted`. The caller must hold the `copying_lock`.

    Also removes a replaced model, unless its import is wanted.
    """
    for stage, import_id in _beside(served):
        if import_id not in wanted:
            remove_tree(served.resolve().with_name(f".{served.resolve().name}.{stage}-{import_id}"))
            sync(served.resolve().parent)


@contextmanager
def copying_lock(served: Path) -> Iterator[None]:
    """Hold the right to copy models beside `served`. Raises ImportUnderWay if another process holds it."""
    served = served.resolve()
    make_folders(served.parent)
    descriptor = os.open(served.with_name(f".{served.name}.importing"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise ImportUnderWay(
            f"Another process is importing a model to {served}.", "Wait for it to end, and import again."
        ) from error
    finally:
        os.close(descriptor)


def _beside(served: Path) -> list[tuple[str, str]]:
    """Return stage and import id of every folder that an import created beside `served`."""
    served = served.resolve()
    if not served.parent.is_dir():
        return []
    prefix = f".{served.name}."
    names = sorted(path.name for path in served.parent.iterdir() if path.name.startswith(prefix))
    found = (_FOLDER.fullmatch(name.removeprefix(prefix)) for name in names)
    return [(match["stage"], match["id"]) for match in found if match]
