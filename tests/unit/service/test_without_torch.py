"""What a process of the api is made of does not wait for torch, nor keep it in memory."""

from tests.support.preloaded import ROOT
from tests.support.processes.imported import imported_with

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


def modules_of(package: str) -> list[str]:
    """Every module of a package of the service, by name."""
    files = (ROOT / "service" / package).rglob("*.py")
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for file in files]
    return sorted(names)


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
