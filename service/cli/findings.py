"""What `lethe doctor` finds on this machine, without asking any server."""

import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from projector.errors import ExplainedError

_OLDEST_PYTHON = (3, 11)
#: Less free space than this is found wrong: a version of a large model and its write-ahead log may not fit (bytes).
_LEAST_FREE = 1 << 30
#: So many differing packages are named.
_NAMED = 4


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    name: str
    #: None: there was nothing to look at, and nothing is wrong with that.
    ok: bool | None
    #: What was found.
    found: str
    #: What to do; empty unless something is wrong.
    remedy: str = ""


def attempt(name: str, look: Callable[[], Finding]) -> Finding:
    """What `look` finds, or the typed error it fails with as a finding of its own."""
    try:
        return look()
    except ExplainedError as error:
        return Finding(name, False, error.detail, error.remedy)
    except OSError as error:
        return Finding(name, False, str(error), "Check the path and its permissions.")


def python_version() -> Finding:
    """Whether this Python is recent enough."""
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info >= _OLDEST_PYTHON:
        return Finding("python", True, found)
    return Finding("python", False, found, "Install Python 3.11 or newer and remove .venv; ./lethe recreates it.")


def packages(root: Path) -> Finding:
    """Whether the packages installed are the pinned ones; a local suffix such as `+cpu` does not count.

    `root` is the folder that `service` was imported from: a checkout, or where Lethe's wheel was installed.
    """
    is_checkout = (root / "lethe").is_file()
    lines = _requirements_of_the_checkout(root) if is_checkout else _requirements_of_the_wheel()
    # What an extra adds may be absent.
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
    files = (root / name for name in ("requirements.txt", "requirements-downloads.txt"))
    return [line for file in files for line in file.read_text().splitlines()]


def _requirements_of_the_wheel() -> Sequence[str]:
    try:
        return requires("lethe-service") or ()
    except PackageNotFoundError:
        return ()


def device(name: str) -> Finding:
    """Whether the device that the settings ask for is there."""
    import torch

    from projector.device import torch_device

    chosen = torch_device("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else torch_device(name)
    what = torch.cuda.get_device_name(chosen) if chosen.type == "cuda" else f"cpu, {torch.get_num_threads()} threads"
    return Finding("device", True, what)


def disk(home: Path) -> Finding:
    """How much room there is where Lethe writes."""
    existing = next(folder for folder in (home, *home.absolute().parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    found = f"{free / (1 << 30):.1f} GiB free in {existing}"
    if free >= _LEAST_FREE:
        return Finding("disk space", True, found)
    return Finding("disk space", False, found, "Make room, or move LETHE_HOME to a larger disk.")


def keys(folder: Path) -> Finding:
    """Whether the keys that only files hold are all there and closed to others."""
    from service.access.keyring import Keyring
    from service.log.signing_keys import are_there
    from service.processes.key_folder import SLOTS

    if not folder.exists():
        return Finding("keys", None, f"none yet in {folder}; the first start creates them")
    Keyring.open(folder, create=False)
    # A start makes the first key of the log, and then the file of the requests' keys.
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
    """Whether there is a model to serve, as far as its own files tell."""
    from model_store.store import Store

    if not folder.exists():
        return Finding("model", None, f"none yet in {folder}; the first start trains one")
    store = Store.open(folder)
    return Finding("model", True, f"{store.manifest.name}, version {store.current().folder}")
