"""Tests, code, files, routes, commands and settings named in the documents exist."""

import ast
import importlib
import inspect
import re
import shlex
from collections.abc import Iterator
from configparser import ConfigParser
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from prometheus_client import CollectorRegistry

from model_store.store import Store
from service.cli.main import build as build_command_line
from service.observability.logging import AccessLog
from service.processes import readiness, unlearner_probes
from service.web.api.application import build
from tests.support.documents.alerts import anchor
from tests.support.preloaded import ROOT

ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.ci
@pytest.mark.parametrize(
    "name", ["settings_table", "figures_table", "observer_table", "reproduce_table", "trace_drawing"]
)
def test_a_table_that_is_made_is_current(name: str) -> None:
    # Two of them import benchmarks, which takes seconds.
    table = importlib.import_module(f"docs.{name}")
    page = table.PAGE.read_text()
    assert page == table.with_current_table(page), f"run: python -m docs.{name}"


def test_the_chunk_size_is_the_stores() -> None:
    rows = inspect.signature(Store.create).parameters["chunk_rows"].default
    assert f"chunk of {rows} rows" in ARCHITECTURE


def test_the_readme_is_a_door_and_no_house() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 160


def test_every_test_that_is_named_exists() -> None:
    # Parsing all of them would take seconds.
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    existing = {*re.findall(r"^ *(?:async def|def|class) (\w+)", tests, re.MULTILINE)}
    existing.add("test_mask")  # an array of a dataset
    named = {(path.name, name) for path in DOCUMENTS for name in re.findall(r"\btest_\w+\b(?!\.py)", path.read_text())}
    assert not {(document, name) for document, name in named if name not in existing}


def test_every_place_in_the_code_that_is_named_exists() -> None:
    for document in DOCUMENTS:
        for path, names in re.findall(r"`((?:\w+/)*\w+\.py)(?::([\w.]+))?`", document.read_text()):
            assert (ROOT / path).is_file(), f"{document.name}: {path}"
            defined = defined_in(ROOT / path) if names else frozenset()
            assert set(names.split(".") if names else []) <= defined, f"{document.name}: {path}:{names}"


def test_every_file_folder_and_program_that_is_named_exists() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} | {"docker", "docs", "migrations"}
    for document in DOCUMENTS:
        text = document.read_text()
        for path in re.findall(rf"`((?:{'|'.join(sorted(packages))})(?:/[\w.-]+)+/?)`", text):
            assert (ROOT / path).exists(), f"{document.name}: {path}"
        for module in re.findall(r"\bpython -m (\w+(?:\.\w+)+)", text):
            assert (ROOT / module.replace(".", "/")).with_suffix(".py").is_file(), f"{document.name}: {module}"


def test_the_table_of_layers_is_that_of_the_import_contracts() -> None:
    """Each module of a layer stands in a row with its number."""
    contracts = ConfigParser()
    contracts.read(ROOT / ".importlinter")
    layers = [
        [part.strip() for part in re.split(r"[:|]", line)]
        for contract in ("directions", "library")
        for line in contracts[f"importlinter:contract:{contract}"]["layers"].splitlines()
        if line
    ]
    assert layers.pop(layers.index(["projector"])) == ["projector"]  # a row for each of its own layers
    named = [list[str]() for _ in layers]
    for number, row in re.findall(
        r"^\| (\d+) \| (`(?:service|model_store|projector).*?) \| ", ARCHITECTURE, re.MULTILINE
    ):
        named[int(number) - 1] += [path.removesuffix(".py").replace("/", ".") for path in re.findall(r"`(.*?)`", row)]
    assert [sorted(layer) for layer in named] == [sorted(layer) for layer in layers]


def test_the_architecture_is_read_in_one_sitting() -> None:
    assert len(ARCHITECTURE.split()) < 2_500


def test_every_link_leads_somewhere() -> None:
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)]+)\)", document.read_text()):
            if target.startswith("https://"):
                continue
            path, _, heading = target.partition("#")
            page = document.parent / path if path else document
            assert page.exists(), f"{document.name}: {target}"
            if heading:
                headings = {anchor(line) for line in page.read_text().splitlines() if line.startswith("#")}
                assert heading in headings, f"{document.name}: {target}"


def test_every_command_that_is_shown_exists() -> None:
    command_line: Any = typer.main.get_command(build_command_line())
    for words in (words for document in DOCUMENTS for words in commands_in(document)):
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
    sources = [Path(str(module.__file__)).read_text() for module in (readiness, unlearner_probes)]
    checks = {name for source in sources for name in re.findall(r'[\[ ]\("(\w+)", \w', source)}
    assert checks >= {"postgres", "lease", "queue", "device"}
    for name in checks:
        assert f"\n| `{name}` |" in page, name


@cache
def defined_in(path: Path) -> frozenset[str]:
    """Return the names of all functions, classes and top-level assignments in a file."""
    return frozenset(_defined(ast.parse(path.read_text())))


def _defined(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
    for statement in tree.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        targets = [statement.target] if isinstance(statement, ast.AnnAssign) else targets
        yield from (target.id for target in targets if isinstance(target, ast.Name))


def commands_in(document: Path) -> Iterator[list[str]]:
    """Yield the arguments of each `./lethe …` in code blocks and spans, up to a pipe, a comment or the next command."""
    text = document.read_text().replace("\\\n", " ")
    blocks = re.findall(r"^```(?:sh|console)?\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    spans = re.findall(r"`([^`\n]*\./lethe[^`\n]*)`", text)
    for line in [line for block in blocks for line in block.splitlines()] + spans:
        shown = re.search(r"(?:^|[\s(])\./lethe(?:\s+([^|;&>)]*))?(?:[|;&>)]|$)", line)
        if shown:
            yield [word for word in shlex.split(shown[1] or "", comments=True) if word != "…"]
