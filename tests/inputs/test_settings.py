"""A setting is used, or refused by the name of its variable or flag; none is ignored."""

import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.cli.exit_status import ExitStatus
from service.errors import ConfigurationError
from service.settings import Settings, load_settings, variable_name
from tests.support.everyday import everyday
from tests.support.inputs.command_lines import Line
from tests.support.inputs.typed import Typed
from tests.support.inputs.variations import VALUES, Sweep, fault_of, misspellings

FIELDS = Settings.model_fields
VARIABLES = {variable_name(field): field for field in FIELDS}


@pytest.fixture
def own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("most", everyday((1, 30), 1))
def test_a_misspelled_variable_is_refused_by_name(typed: Typed, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    sweep = Sweep("variables")
    wrong = [
        misspelled
        for variable in VARIABLES
        for misspelled in sweep.some(misspellings(variable, VARIABLES), most)
        # What does not begin as Lethe's own does is somebody else's, and case is no matter.
        if misspelled.upper().startswith("LETHE_") and misspelled.upper() not in VARIABLES
    ]
    for name in sweep.cases(["LETHE_FROBNICATE", *wrong], None if most > 1 else 15):
        with monkeypatch.context() as patched:
            patched.setenv(name, "1")
            ran = typed(Line(("keys", "list")))
        if isinstance(ran, str):
            sweep.find(f"{name}=1", f"a traceback ({ran[:150]})")
        elif what := fault_of(ran.status == ExitStatus.USAGE, ran.stderr, name):
            sweep.find(f"{name}=1", what)
    sweep.judge()


@pytest.mark.parametrize("most", everyday((3, len(VALUES)), 3))
@pytest.mark.usefixtures("own_environment")
def test_a_value_of_another_type_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    sweep = Sweep("values")
    cases = [(one, text) for one in FIELDS for text in sweep.some(texts(), most)]
    for field, value in sweep.cases(cases):
        name = variable_name(field)
        with monkeypatch.context() as patched:
            patched.setenv(name, value)
            for told, way in ((refusal(), f"{name}={value!r}"), (refusal(**{field: value}), f"--{field} {value!r}")):
                if told is None:
                    if not may_be(FIELDS[field].annotation, value):
                        sweep.find(way, "taken")
                elif what := fault_of(True, told, name):
                    sweep.find(way, what)
    sweep.judge()


def refusal(**flags: str) -> str | None:
    """What the settings are refused with; None when they are not."""
    try:
        load_settings(**flags)
    except ConfigurationError as error:
        return error.detail
    return None


def texts() -> Iterator[str]:
    """What a variable can hold; an empty one is as one that is not set."""
    return (value for value in VALUES if value and "\x00" not in value)


def may_be(annotation: Any, value: str) -> bool:
    """Whether a value may be right, whatever else it must be."""
    kinds = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    if int in kinds or float in kinds:
        try:
            return float(value) == float(value)
        except ValueError:
            return False
    return not any(typing.get_origin(kind) is typing.Literal for kind in kinds)
