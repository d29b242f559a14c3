"""Replacing a model's folder by that of a newly trained model, in steps that a crash may fall between.

    <name>                  the model that is served
    .<name>.copying-<id>    a copy under way
    .<name>.import-<id>     a whole copy, checked: what the import <id> will make the served model
    .<name>.replaced-<id>   the model that the import <id> has replaced, until it is gone from the disk
    .<name>.importing       locked while a copy is made

Which of the folders counts is the database's to say; here they are only moved.
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
        # What a link points to is replaced, not the link.
        self.served = served.resolve()
        self.copying, self.staged, self.replaced = (
            self.served.with_name(f".{self.served.name}.{stage}-{import_id}")
            for stage in ("copying", "import", "replaced")
        )

    def stage(self, provide: Callable[[Path], Store], work: Work | None = None) -> Store:
        """Makes what `provide` writes to the folder given to it the staged model, checked and durable.

        The check and the wait for the disk are steps of `work`.
        Raises NotAStore or StoreDamaged when it is not a model with every digest right.
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
        """Makes the staged model the served one and returns it; what a crash left half done is finished.

        Raises FileNotFoundError, and leaves the served model in its place, when another process has done it meanwhile.
        """
        if self.staged.exists():
            if self.served.exists():
                # What was deleted stays known; the database may be restored from an older backup some day.
                tombstones.carry(self.served, self.staged)
                rename(self.served, self.replaced)
            try:
                rename(self.staged, self.served)
            except FileNotFoundError:
                # A successor had installed it, and it is the new model that was taken away just now.
                if not self.served.exists():
                    rename(self.replaced, self.served)
                raise
        return Store.open(self.served)

    def erase_replaced(self) -> None:
        """Removes the replaced model from the disk, durably."""
        self._remove(self.replaced)

    def discard(self) -> None:
        """Removes the staged model from the disk, durably."""
        self._remove(self.staged)

    def _remove(self, folder: Path) -> None:
        if folder.exists():
            remove_tree(folder)
            sync(folder.parent)


def check_store(folder: Path, work: Work | None = None) -> Store:
    """The model in a folder from anywhere, every array of which has been read and matches its digest.

    Its reading and the look at its graph are steps of `work`.
    Raises NotAStore or StoreDamaged, also for what digests do not tell: links and devices, files that are too large
    to be read, and a graph that nobody could have trained on.
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
    """Puts a model where it is served from when a crash fell between taking one away and that.

    The old one is only taken away once the new one is committed, so that it is the new one; without a staged one, what
    was taken away is the new one itself. Nothing is done while there is a model.
    """
    if served.exists():
        return
    moved = [Replacement(served, import_id) for stage, import_id in _beside(served) if stage == "replaced"]
    for one in sorted(moved, key=lambda one: not one.staged.exists())[:1]:
        rename(one.staged if one.staged.exists() else one.replaced, one.served)


def clear_abandoned(served: Path, *, wanted: Collection[str]) -> None:
    """Removes copies for imports other than `wanted`, for one who holds the `copying_lock`.

    A replaced model is removed as well, unless its import is wanted.
    """
    for stage, import_id in _beside(served):
        if import_id not in wanted:
            remove_tree(served.resolve().with_name(f".{served.resolve().name}.{stage}-{import_id}"))
            sync(served.resolve().parent)


@contextmanager
def copying_lock(served: Path) -> Iterator[None]:
    """Holds the right to copy models beside `served`; ImportUnderWay when another process has it."""
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
    """Stage and import of every folder that an import made beside `served`."""
    served = served.resolve()
    if not served.parent.is_dir():
        return []
    prefix = f".{served.name}."
    names = sorted(path.name for path in served.parent.iterdir() if path.name.startswith(prefix))
    found = (_FOLDER.fullmatch(name.removeprefix(prefix)) for name in names)
    return [(match["stage"], match["id"]) for match in found if match]
