"""What the documents name exists: tests, code, files, routes, commands, settings."""

import ast
import inspect
import re
import shlex
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
from prometheus_client import CollectorRegistry

from docs import figures_table, observer_table, reproduce_table, settings_table
from model_store.store import Store
from service.api.application import build
from service.cli.main import build as build_command_line
from service.observability.access import AccessLog
from service.operation import api_probes, unlearner_probes
from tests.support.documents.alerts import anchor
from tests.support.preloaded import ROOT

ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.fixture(params=DOCUMENTS, ids=lambda path: path.name)
def document(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


@pytest.mark.parametrize(
    "table", [settings_table, figures_table, observer_table, reproduce_table], ids=lambda table: table.__name__
)
def test_a_table_that_is_made_is_current(table: ModuleType) -> None:
    page = table.PAGE.read_text()
    assert page == table.with_current_table(page), f"run: python -m {table.__name__}"


def test_the_chunk_size_is_the_stores() -> None:
    rows = inspect.signature(Store.create).parameters["chunk_rows"].default
    assert f"chunk of {rows} rows" in ARCHITECTURE


def test_the_readme_is_a_door_and_no_house() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 160


@pytest.fixture(scope="module")
def existing() -> set[str]:
    """The names in all files of tests."""
    return {name for path in (ROOT / "tests").rglob("test_*.py") for name in defined_in(path)}


def test_every_test_that_is_named_exists(document: Path, existing: set[str]) -> None:
    named = set(re.findall(r"\btest_\w+\b(?!\.py)", document.read_text()))
    assert not named - existing - {"test_mask"}  # an array of a dataset


def test_every_place_in_the_code_that_is_named_exists(document: Path) -> None:
    for path, names in re.findall(r"`((?:\w+/)*\w+\.py)(?::([\w.]+))?`", document.read_text()):
        assert (ROOT / path).is_file(), path
        assert set(names.split(".") if names else []) <= set(defined_in(ROOT / path)), f"{path}:{names}"


def test_every_file_folder_and_program_that_is_named_exists(document: Path) -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} | {"docker", "docs", "migrations"}
    text = document.read_text()
    for path in re.findall(rf"`((?:{'|'.join(sorted(packages))})(?:/[\w.-]+)+/?)`", text):
        assert (ROOT / path).exists(), path
    for module in re.findall(r"\bpython -m (\w+(?:\.\w+)+)", text):
        assert (ROOT / module.replace(".", "/")).with_suffix(".py").is_file(), module


def test_the_table_of_layers_is_that_of_the_import_contracts() -> None:
    """Each layer's modules stand in one row, and the rows in the order of the contracts."""
    contracts = ConfigParser()
    contracts.read(ROOT / ".importlinter")
    layers = [
        [part.strip() for part in re.split(r"[:|]", line)]
        for contract in ("directions", "library")
        for line in contracts[f"importlinter:contract:{contract}"]["layers"].splitlines()
        if line
    ]
    assert layers.pop(layers.index(["projector"])) == ["projector"]  # a row for each of its own layers
    rows = re.findall(r"^\| (?:service|model_store|projector)? ?\| (`.*?) \| ", ARCHITECTURE, re.MULTILINE)
    named = [[path.removesuffix(".py").replace("/", ".") for path in re.findall(r"`(.*?)`", row)] for row in rows]
    assert [sorted(row) for row in named] == [sorted(layer) for layer in layers]


def test_every_link_leads_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", document.read_text()):
        if target.startswith("https://"):
            continue
        path, _, heading = target.partition("#")
        page = document.parent / path if path else document
        assert page.exists(), target
        if heading:
            assert heading in {anchor(line) for line in page.read_text().splitlines() if line.startswith("#")}, target


def test_every_command_that_is_shown_exists(document: Path) -> None:
    command_line: Any = typer.main.get_command(build_command_line())
    for words in commands_in(document):
        if not words or words[0] in ("test", "check", "reproduce"):  # of the launcher
            continue
        known, rest = command_line, words
        assert words[0].startswith("--") or words[0] in command_line.commands, words
        while hasattr(known, "commands") and rest and rest[0] in known.commands:
            known, rest = known.commands[rest[0]], rest[1:]
        flags = {option for parameter in known.params for option in (*parameter.opts, *parameter.secondary_opts)}
        used = {word.partition("=")[0] for word in rest if word.startswith("--") and word != "--help"}
        assert used <= flags, words


def test_every_route_is_described_with_a_real_call() -> None:
    application = build(
        max_body_bytes=1, registry=CollectorRegistry(), access_log=AccessLog("console", "info", process="api-0")
    )
    page = (ROOT / "docs" / "api.md").read_text()
    for path, operations in application.openapi()["paths"].items():
        for method in operations:
            assert f"## `{method.upper()} {path}`" in page, path


def test_every_readiness_check_has_its_remedy() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    sources = [Path(str(module.__file__)).read_text() for module in (api_probes, unlearner_probes)]
    checks = {name for source in sources for name in re.findall(r'[\[ ]\("(\w+)", \w', source)}
    assert checks >= {"postgres", "lease", "queue", "device"}
    for name in checks:
        assert f"\n| `{name}` |" in page, name


def defined_in(path: Path) -> Iterator[str]:
    """The names of all functions and classes in a file, and of what is assigned at its top."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
    for statement in tree.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        targets = [statement.target] if isinstance(statement, ast.AnnAssign) else targets
        yield from (target.id for target in targets if isinstance(target, ast.Name))


def commands_in(document: Path) -> Iterator[list[str]]:
    """The arguments of each `./lethe …` in code blocks and spans, up to a pipe, a comment or the next command."""
    text = document.read_text().replace("\\\n", " ")
    blocks = re.findall(r"^```(?:sh|console)?\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    spans = re.findall(r"`([^`\n]*\./lethe[^`\n]*)`", text)
    for line in [line for block in blocks for line in block.splitlines()] + spans:
        shown = re.search(r"(?:^|[\s(])\./lethe(?:\s+([^|;&>)]*))?(?:[|;&>)]|$)", line)
        if shown:
            yield [word for word in shlex.split(shown[1] or "", comments=True) if word != "…"]
