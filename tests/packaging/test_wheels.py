"""Contents of the wheels; each works alone in an empty environment, away from the checkout."""

import json
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from service.cli.threads import set_threads
from service.version import VERSION
from tests.support.preloaded import ROOT, Process, Start, fresh
from tests.support.processes.lethe_process import LetheProcess

pytestmark = pytest.mark.ci

#: Where each wheel is built, and its packages.
PARTS = {
    "lethe-service": (".", ("service", "model_store", "projector", "lethe_client", "migrations")),
    "lethe-projector": ("wheels/projector", ("projector",)),
    "lethe-client": ("wheels/client", ("lethe_client",)),
}
#: Packages that the library and the client must not need.
APPLICATION = (
    "fastapi",
    "model_store",
    "pydantic",
    "redis",
    "safetensors",
    "service",
    "sqlalchemy",
    "structlog",
    "torch_geometric",
)
#: Pages made from files beside the code.
PAGES = ("/readyz", "/docs", "/docs/assets/swagger-ui.css", "/dashboard/login", "/dashboard/static/page.js")


@dataclass(frozen=True)
class Wheel:
    """A built wheel, and its source folder."""

    file: Path
    source: Path
    packages: tuple[str, ...]

    @property
    def contents(self) -> set[str]:
        """Return the names of its files, except its metadata."""
        with zipfile.ZipFile(self.file) as archive:
            return {name for name in archive.namelist() if ".dist-info/" not in name}

    @property
    def metadata(self) -> Message:
        with zipfile.ZipFile(self.file) as archive:
            (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
            return Parser().parsestr(archive.read(name).decode())

    @property
    def requires(self) -> list[str]:
        return self.metadata.get_all("Requires-Dist", [])


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Wheel]:
    """The wheels of a copy of this checkout, with a dataset beside the code and files that must not be shipped."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheels")
    requirements = (path.name for path in ROOT.glob("requirements*.txt"))
    for name in ("LICENSE", "README.md", "pyproject.toml", *requirements):
        shutil.copy(ROOT / name, source)
    for name in ("wheels", "projector", "model_store", "service", "lethe_client", "migrations"):
        # A link to the licence stays one.
        ignored = shutil.ignore_patterns("__pycache__", "build")
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
    (source / "model_store" / "datasets" / "in_the_box.npz").write_bytes(b"a dataset")
    (source / "service" / "__pycache__").mkdir()
    (source / "service" / "__pycache__" / "app.cpython-311.pyc").write_bytes(b"compiled")
    built = {}
    for name, (folder, packages) in PARTS.items():
        command: list[str | Path] = [
            sys.executable,
            "-m",
            "build",
            "--wheel",
            "--no-isolation",
            "--outdir",
            out,
            source / folder,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        (file,) = out.glob(f"{name.replace('-', '_')}-*.whl")
        built[name] = Wheel(file, source, packages)
    return built


@pytest.mark.parametrize("name", PARTS)
def test_every_file_of_its_packages_is_in_a_wheel_and_nothing_else(name: str, wheels: Mapping[str, Wheel]) -> None:
    wheel = wheels[name]
    found = {file for package in wheel.packages for file in (wheel.source / package).rglob("*") if file.is_file()}
    expected = {str(file.relative_to(wheel.source)) for file in found if "__pycache__" not in file.parts}
    assert wheel.contents == expected
    if name == "lethe-service":
        assert "model_store/datasets/in_the_box.npz" in expected
        assert "migrations/versions/r0001/versions.sql" in expected
        assert any(name.endswith(".html") for name in expected)
    else:
        assert f"{wheel.packages[0]}/py.typed" in expected


def test_all_wheels_are_of_one_version_and_come_with_the_licence(wheels: Mapping[str, Wheel]) -> None:
    for wheel in wheels.values():
        assert wheel.metadata["Version"] == VERSION
        assert wheel.metadata["Requires-Python"] == ">=3.11"
        with zipfile.ZipFile(wheel.file) as archive:
            (licence,) = [name for name in archive.namelist() if name.endswith(".dist-info/licenses/LICENSE")]
            assert archive.read(licence) == (ROOT / "LICENSE").read_bytes()


def test_the_application_requires_what_a_checkout_installs_and_none_of_the_other_wheels(
    wheels: Mapping[str, Wheel],
) -> None:
    def pins(name: str) -> list[str]:
        return [line for line in (ROOT / name).read_text().splitlines() if re.match(r"\w", line)]

    extras = ("downloads", "bucket", "tables", "traces")
    extra = [f'{pin}; extra == "{name}"' for name in extras for pin in pins(f"requirements-{name}.txt")]
    assert wheels["lethe-service"].requires == pins("requirements.txt") + extra


@dataclass(frozen=True)
class Environment:
    """A virtual environment with one installed distribution and its requirements from the index."""

    folder: Path

    @classmethod
    def with_(cls, wheel_or_checkout: Path, folder: Path) -> "Environment":
        venv.create(folder, with_pip=True)
        environment = cls(folder)
        environment.run("python", "-m", "pip", "install", "-q", str(wheel_or_checkout))
        environment.run("python", "-m", "pip", "check")
        return environment

    def run(self, program: str, *arguments: str) -> str:
        """Return the output of a program of the environment. Raises AssertionError unless it exits with 0."""
        command: list[str | Path] = [self.folder / "bin" / program, *arguments]
        own = ("LETHE_", "OMP_", "PYTHONPATH", "DATABASE_URL", "REDIS_URL")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(own)}
        environment |= {"LETHE_DEVICE": "cpu", "COLUMNS": "200"}
        done = subprocess.run(
            command, cwd=self.folder.parent, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def lacks(self, *modules: str) -> None:
        """Raise AssertionError if one of `modules` can be imported."""
        code = "import sys; from importlib.util import find_spec; print([m for m in sys.argv[1:] if find_spec(m)])"
        assert self.run("python", "-c", code, *modules).strip() == "[]"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_library_trains_where_there_is_no_application(wheels: Mapping[str, Wheel], tmp_path: Path) -> None:
    library = Environment.with_(wheels["lethe-projector"].file, tmp_path / "library")
    library.lacks(*APPLICATION, "httpx2", "lethe_client")

    program = shutil.copy(Path(__file__).with_name("library_alone.py"), tmp_path)
    result = json.loads(library.run("python", str(program)))

    assert result["relative_gradient"] < 1e-8
    assert (result["rank"], result["accuracy"]) == (8, 1.0)
    assert "torch" in result["modules"]
    assert not set(result["modules"]) & set(APPLICATION)
    print(json.dumps({name: result[name] for name in ("relative_gradient", "rank", "accuracy")}))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_client_does_without_torch(wheels: Mapping[str, Wheel], tmp_path: Path) -> None:
    client = Environment.with_(wheels["lethe-client"].file, tmp_path / "client")
    client.lacks(*APPLICATION, "projector", "torch", "numpy")
    code = (
        "from lethe_client import LetheClient, LetheClientError\n"
        "try: LetheClient('http://127.0.0.1:1', 'a-key').model()\n"
        "except LetheClientError as error: print(error.detail)"
    )
    output = client.run("python", "-c", code)
    assert "127.0.0.1:1" in output
    print(output)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_what_pip_installs_from_a_checkout_serves_forgets_and_examines_itself(
    wheels: Mapping[str, Wheel], tmp_path: Path
) -> None:
    # Like `pip install .` in a checkout.
    environment = Environment.with_(wheels["lethe-service"].source, tmp_path / "application")
    environment.lacks("torch_geometric")
    # Files in the current folder must not shadow what was installed.
    (tmp_path / "service").mkdir()
    (tmp_path / "service" / "__init__.py").write_text("raise SystemExit('a stranger')")

    assert "Usage: lethe" in environment.run("lethe", "--help")
    lethe = LetheProcess(
        installed(environment.folder / "bin" / "lethe"), tmp_path / "home", dataset="cora", repair="always"
    )
    with lethe:
        lethe.start()
        with lethe.http() as http:
            for page in PAGES:
                assert http.get(page).status_code == 200, page
            assert http.get("/predict/7").json()["node"] == "7"
            deleted = lethe.delete(["7"])
            assert (deleted.status, deleted.guarantee, deleted.repair) == ("completed", "retrained", "converged")
            assert http.get("/predict/7").status_code == 410
            receipt = http.get(f"/deletions/{deleted.id}/receipt", params={"format": "html"})
            assert "<html" in receipt.text
        examined = environment.run("lethe", "doctor", "--home", str(lethe.home))
        ended = lethe.stop()
    assert ended.status == 0
    print(examined, ended.stdout)

    wanted: dict[str, str] = {}
    set_threads(wanted)
    assert re.search(r"packages +ok +all \d+ as pinned", examined)
    assert re.search(rf"device +ok +cpu, {wanted['OMP_NUM_THREADS']} threads", examined)
    assert re.search(r"migrations +ok", examined)


def installed(program: Path) -> Start:
    """Start `program` as a user without a checkout or its launcher."""
    start = fresh(str(program))

    def started(arguments: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path) -> Process:
        own = {name: value for name, value in environment.items() if not name.startswith(("OMP_", "PYTHONPATH"))}
        return start(arguments, own, folder, log)

    return started
