"""Where tests lie: nobody imports a test, and each that is named is there."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.preloaded import ROOT

TESTS = ROOT / "tests"
MODULES = sorted(TESTS.rglob("*.py"))
#: What names tests to whoever reads it.
READ = [
    *("*.md", "docs/**/*.md", "*.toml", ".ci/*", "lethe"),
    *("projector/**/*.py", "model_store/**/*.py", "service/**/*.py", "tests/**/*.py"),
]


def imported(module: Path) -> Iterator[str]:
    """The modules that a module names in its imports, wherever they stand."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{one.name}" for one in node.names)


def test_no_test_module_imports_another() -> None:
    """What two of them use lies in `tests.support`."""
    others = {
        f"{module.relative_to(ROOT)}: {name}"
        for module in MODULES
        for name in imported(module)
        if re.search(r"(^|\.)(test_\w+|conftest)(\.|$)", name) or re.match(r"tests\.(?!support\.)", name)
    }
    assert others == set()


def test_modules_of_tests_are_named_in_full() -> None:
    """Two files of one name in folders that are no packages would be one module."""
    assert [folder for folder in {module.parent for module in MODULES} if not (folder / "__init__.py").is_file()] == []


@pytest.mark.parametrize("pattern", READ)
def test_every_path_of_a_test_that_is_named_exists(pattern: str) -> None:
    named = {
        (str(file.relative_to(ROOT)), path.rstrip("."))
        for file in ROOT.glob(pattern)
        for path in re.findall(r"(?<![\w/])tests/[\w/.-]*\w", file.read_text())
    }
    assert [(file, path) for file, path in sorted(named) if not (ROOT / path).exists()] == []
