"""The modules of an api process neither wait for torch nor keep it in memory."""

import pytest

from tests.support.preloaded import ROOT
from tests.support.processes.imported import imported_with

#: Packages whose modules may all be imported by a process without a model.
PACKAGES = (
    "access",
    "db",
    "domain",
    "log",
    "observability",
    "predictions",
    "queue",
    "reports",
    "requests",
    "web",
    "webhooks",
)
#: And modules of packages in which others use torch.
MODULES = [
    "service.processes.gauges",
    "service.processes.readiness",
    "service.unlearner.causes",
    "service.unlearner.pending_repairs",
]
#: Packages of the unlearner.
OF_THE_UNLEARNER = ("predictions", "requests", "unlearner")


def modules_of(package: str) -> list[str]:
    """Return every module of a package of the service, by name."""
    files = (ROOT / "service" / package).rglob("*.py")
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for file in files]
    return sorted(names)


def test_no_module_of_the_api_imports_torch_nor_its_process_what_migrates() -> None:
    modules = [name for package in PACKAGES for name in modules_of(package)]
    assert {name.split(".")[1] for name in modules} == set(PACKAGES)
    of_a_process, of_all = imported_with(["service.processes.api_process"], [*modules, *MODULES])
    assert of_a_process & {"alembic", "mako"} == set()
    assert "torch" not in of_all


@pytest.mark.slow
def test_no_module_of_the_unlearner_imports_the_web_framework() -> None:
    [found] = imported_with([name for package in OF_THE_UNLEARNER for name in modules_of(package)])
    assert "torch" in found
    assert "fastapi" not in found
