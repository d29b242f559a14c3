"""The layout of files: no imports between tests, existing names, and unique module names in the service."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.preloaded import ROOT

TESTS = ROOT / "tests"
MODULES = sorted(TESTS.rglob("*.py"))
SERVICE = sorted((ROOT / "service").rglob("*.py"))
MOST_LINES = 350
#: The module that names come from, and the names.
_IMPORT = re.compile(r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+)?import[ \t]+(\([^)]*\)|[^\n#]+)", re.MULTILINE)
#: Files that exceeded the bound when it was set, with their lines then.
LONGER = {
    "service/db/tables.py": 406,
    "service/domain/figures.py": 426,
    "service/requests/intake.py": 376,
    "service/settings.py": 402,
    "service/unlearner/loop.py": 370,
}
#: Files that name tests to their readers.
READ = [
    *("*.md", "docs/**/*.md", "*.toml", ".ci/*", "lethe"),
    *("projector/**/*.py", "model_store/**/*.py", "service/**/*.py", "tests/**/*.py"),
]


def lines_of(path: Path) -> int:
    return len(path.read_text().splitlines())


def imported(module: Path) -> Iterator[str]:
    """Yield the modules that a module imports anywhere. Parsing all of them would take seconds."""
    for source, names in _IMPORT.findall(module.read_text()):
        for name in names.strip("()").split(","):
            if words := name.split():
                yield f"{source}.{words[0]}" if source else words[0]


def test_no_test_module_imports_another() -> None:
    """Shared code lies in `tests.support`."""
    others = {
        f"{module.relative_to(ROOT)}: {name}"
        for module in MODULES
        for name in imported(module)
        if re.search(r"(^|\.)(test_\w+|conftest)(\.|$)", name) or re.match(r"tests\.(?!support\.)", name)
    }
    assert others == set()


def test_modules_of_tests_are_named_in_full() -> None:
    """Two files of one name in folders that are not packages would be one module."""
    assert [folder for folder in {module.parent for module in MODULES} if not (folder / "__init__.py").is_file()] == []


def test_no_two_modules_of_the_service_have_one_name() -> None:
    """A name alone identifies a file; the schemas of a noun are in its package."""
    names = Counter(path.stem for path in SERVICE)
    assert {name for name, times in names.items() if times > 1} <= {"__init__", "schemas"}


def test_a_file_of_the_service_is_read_in_one_go() -> None:
    """Longer files are listed here and must not grow; one that shrinks below the bound is removed from the list."""
    longer = {str(path.relative_to(ROOT)): lines for path in SERVICE if (lines := lines_of(path)) > MOST_LINES}
    assert longer.keys() == LONGER.keys()
    assert {path for path, lines in longer.items() if lines > LONGER[path]} == set()


@pytest.mark.parametrize("pattern", READ)
def test_every_path_of_a_test_that_is_named_exists(pattern: str) -> None:
    named = {
        (str(file.relative_to(ROOT)), path.rstrip("."))
        for file in ROOT.glob(pattern)
        for path in re.findall(r"(?<![\w/])tests/[\w/.-]*\w", file.read_text())
    }
    assert [(file, path) for file, path in sorted(named) if not (ROOT / path).exists()] == []
