"""Checks by `lethe doctor` of this machine, without contacting a server."""

import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from projector.errors import ExplainedError

_OLDEST_PYTHON = (3, 11)
#: Minimum free space (bytes): less may not fit a version of a large model and its write-ahead log.
_LEAST_FREE = 1 << 30
#: Most differing packages named.
_NAMED = 4


@dataclass(frozen=True)
class Finding:
    """Result of one check."""

    name: str
    #: None if there was nothing to check, which is fine.
    ok: bool | None
    #: The observation.
    found: str
    #: Remedy; empty unless something is wrong.
    remedy: str = ""


def attempt(name: str, look: Callable[[], Finding]) -> Finding:
    """Return the finding of `look`, or its typed error as a finding."""
    try:
        return look()
    except ExplainedError as error:
        return Finding(name, False, error.detail, error.remedy)
    except OSError as error:
        return Finding(name, False, str(error), "Check the path and its permissions.")


def python_version() -> Finding:
    """Check that this Python is recent enough."""
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info >= _OLDEST_PYTHON:
        return Finding("python", True, found)
    return Finding("python", False, found, "Install Python 3.11 or newer and remove .venv; ./lethe recreates it.")


def packages(root: Path) -> Finding:
    """Check that installed packages match the pins, ignoring local suffixes such as `+cpu`.

    `root` is the folder that `service` was imported from: a checkout, or the installation of Lethe's wheel.
    """
    is_checkout = (root / "lethe").is_file()
    lines = _requirements_of_the_checkout(root) if is_checkout else _requirements_of_the_wheel()
    # Packages of extras may be absent.
    needed = [line.partition("#")[0].strip() for line in lines if "extra ==" not in line]
    pins = [line.partition("==")[::2] for line in needed if "==" in line]
    again = "Remove .venv; ./lethe recreates it." if is_checkout else "Install lethe-service in a new environment."
    if not pins:
        return Finding("packages", False, "the required versions are unknown here", again)
    wrong: list[str] = []
    for name, pinned in pins:
        try:
            installed = version(name).partition("+")[0]
        except PackageNotFoundError:
            installed = "absent"
        if installed != pinned:
            wrong.append(f"{name} {installed} instead of {pinned}")
    if not wrong:
        return Finding("packages", True, f"all {len(pins)} as pinned")
    more = f", and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
    return Finding("packages", False, ", ".join(wrong[:_NAMED]) + more, again)


def _requirements_of_the_checkout(root: Path) -> Sequence[str]:
    files = (root / name for name in ("requirements.txt", "requirements-downloads.txt", "requirements-tables.txt"))
    return [line for file in files for line in file.read_text().splitlines()]


def _requirements_of_the_wheel() -> Sequence[str]:
    try:
        return requires("lethe-service") or ()
    except PackageNotFoundError:
        return ()


def device(name: str) -> Finding:
    """Check that the configured device is available."""
    import torch

    from projector.device import torch_device

    chosen = torch_device("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else torch_device(name)
    what = torch.cuda.get_device_name(chosen) if chosen.type == "cuda" else f"cpu, {torch.get_num_threads()} threads"
    return Finding("device", True, what)


def disk(home: Path) -> Finding:
    """Check free space where Lethe writes."""
    existing = next(folder for folder in (home, *home.absolute().parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    found = f"{free / (1 << 30):.1f} GiB free in {existing}"
    if free >= _LEAST_FREE:
        return Finding("disk space", True, found)
    return Finding("disk space", False, found, "Make room, or move LETHE_HOME to a larger disk.")


def keys(folder: Path) -> Finding:
    """Check that the keys stored only in files are complete and private."""
    from service.access.keyring import Keyring
    from service.log.signing_keys import are_there
    from service.processes.key_folder import SLOTS

    if not folder.exists():
        return Finding("keys", None, f"none yet in {folder}; the first start creates them")
    Keyring.open(folder, create=False)
    # The first start creates the log's first key before the file of request keys.
    if are_there(folder) and not (folder / SLOTS).exists():
        return Finding(
            "keys",
            False,
            f"{folder / SLOTS} is missing: queued requests cannot be read without it",
            "Restore it from the backup of LETHE_HOME that belongs to this database. If no request is queued, the "
            "next start recreates it; otherwise it reports their number.",
        )
    return Finding("keys", True, str(folder))


def model(folder: Path) -> Finding:
    """Check that there is a model to serve, using only its files."""
    from model_store.store import Store

    if not folder.exists():
        return Finding("model", None, f"none yet in {folder}; the first start trains one")
    store = Store.open(folder)
    return Finding("model", True, f"{store.manifest.name}, version {store.current().folder}")


def ledger(url: str | None, home: Path, model: Path) -> Finding:
    """Check that the newest entry of the erasure ledger can be read, and is this home's."""
    from model_store.naming import name_of
    from service.ledger.erasure_ledger import ErasureLedger

    if url is None:
        found = "none: after a restore of home and database, what was deleted since the backup returns"
        return Finding("ledger", None, found)
    if not model.is_dir():
        return Finding("ledger", None, f"{url}, not begun")
    opened = ErasureLedger.of(url, home, name_of(model))
    head = None if opened is None else opened.open()
    return Finding("ledger", True, f"{url}, {'not begun' if head is None else f'entry {head.number} is the newest'}")
