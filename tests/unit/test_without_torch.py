"""What a process of the api is made of does not wait for torch, nor keep it in memory."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: Packages of which every module may be imported by a process without a model.
PACKAGES = (
    "access",
    "api",
    "audit",
    "audit_records",
    "dashboard",
    "db",
    "deletions",
    "domain",
    "drills",
    "evidence",
    "http",
    "key_slots",
    "observability",
    "publication",
    "queue",
    "vault",
)
#: And of packages in which others have torch.
MODULES = [
    "service.batches.pending_repairs",
    "service.imports.repository",
    "service.operation.api_probes",
    "service.operation.description",
    "service.operation.gauges",
    "service.recovery.repository",
    "service.tombstones.lookup",
    "service.tombstones.repository",
    "service.versions.batch_rows",
    "service.versions.pointers",
    "service.versions.versions",
]
#: What the unlearner is made of.
OF_THE_UNLEARNER = (
    "batches",
    "drills",
    "evidence",
    "imports",
    "key_slots",
    "operation",
    "publication",
    "recovery",
    "tombstones",
    "unlearning",
    "versions",
    "worker",
)
#: Alembic alone imports these, inside a migration.
_OF_ALEMBIC = "service.db.migrations"

_IMPORT = """
import importlib, json, sys
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def modules_of(package: str) -> list[str]:
    """Every module of a package of the service, by name."""
    files = (ROOT / "service" / package).rglob("*.py")
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for file in files]
    return sorted(name for name in names if not name.startswith(_OF_ALEMBIC))


def imported_with(modules: list[str]) -> set[str]:
    """The packages that a fresh interpreter has in memory once it has imported `modules`."""
    command = [sys.executable, "-P", "-c", _IMPORT, json.dumps(modules)]
    found = subprocess.run(command, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True)
    return set(json.loads(found.stdout))


def test_no_module_of_the_api_imports_torch() -> None:
    modules = [name for package in PACKAGES for name in modules_of(package)]
    assert {name.split(".")[1] for name in modules} == set(PACKAGES)
    assert "torch" not in imported_with([*modules, *MODULES])


def test_a_process_that_serves_looks_at_the_schema_without_what_migrates_it() -> None:
    assert imported_with(["service.processes.api"]) & {"alembic", "mako", "torch"} == set()


def test_no_module_of_the_unlearner_imports_the_web_framework() -> None:
    found = imported_with([name for package in OF_THE_UNLEARNER for name in modules_of(package)])
    assert "torch" in found
    assert "fastapi" not in found
