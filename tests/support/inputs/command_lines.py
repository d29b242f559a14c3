"""Every command with its options and arguments, from the command line itself, and what can be typed wrongly."""

import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import typer

from service.audit.checkpoint import Signer
from service.cli.main import build
from service.settings import Settings
from tests.support.inputs.variations import VALUES, Sweep, misspellings

#: Of an API as of a log.
_KEY = str(Signer("lethe.test", bytes(32)).public)
#: What a parameter is given where its type does not say, by its name.
_SAMPLES = {
    "dataset": "synthetic:n=60,d=12,classes=3,seed=1",
    "until": "2027-01-31",
    "url": "http://127.0.0.1:1",
    "key": _KEY,
    "log_key": _KEY,
    "public_key": _KEY,
    "names": "1",
}
#: What an option is nothing without.
_COMPANIONS = {
    "--mlp": ["--public", "{file}"],
    "--public": ["--mlp", "4"],
    "--canary-nodes": ["--canaries", "1"],
    "--inject-class": ["--inject-channel", "{file}"],
    "--reference": ["--salts", "{file}"],
}


@dataclass(frozen=True)
class Parameter:
    """An option or an argument."""

    #: As it is typed, or as the help calls an argument.
    name: str
    #: As the function of the command calls it.
    word: str
    kind: Any
    is_option: bool
    is_flag: bool
    may_repeat: bool
    required: bool

    @property
    def reads_a_file(self) -> bool:
        return Path in self.kinds

    @property
    def kinds(self) -> tuple[Any, ...]:
        kinds = typing.get_args(self.kind) if isinstance(self.kind, types.UnionType) else (self.kind,)
        return tuple(typing.get_args(one)[0] if typing.get_origin(one) is list else one for one in kinds)

    def sample(self, files: Mapping[str, str]) -> str:
        """A value that is right, where one is."""
        if self.word in _SAMPLES:
            return _SAMPLES[self.word]
        for kind in self.kinds:
            if kind is Path:
                return files["{new}"] if self.word in ("out", "salts", "metrics", "home") else files["{file}"]
            if kind is UUID:
                return "0197f3c2-6f6e-7c1a-9d55-0d7a5d3b2c11"
            if isinstance(kind, type) and issubclass(kind, Enum):
                return str(next(iter(kind)).value)
            if typing.get_origin(kind) is typing.Literal:
                return str(typing.get_args(kind)[0])
        return "1"

    def may_be(self, value: str) -> bool:
        """Whether a value may be right, whatever else it must be."""
        if int in self.kinds or float in self.kinds:
            try:
                float(value)
            except ValueError:
                return False
            return True
        return str in self.kinds or Path in self.kinds


@dataclass(frozen=True)
class Line:
    """A command as it is typed."""

    words: tuple[str, ...]
    #: What a refusal must name, one of these; () where it need not be refused.
    wrong: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "./lethe " + " ".join(f"'{word}'" if not word or " " in word else word for word in self.words)


def commands() -> dict[str, tuple[Parameter, ...]]:
    """The options and arguments of each command, by its name as it is typed."""
    return dict(_walk(typer.main.get_command(build())))


def _walk(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, tuple[Parameter, ...]]]:
    for name, each in command.commands.items():
        if hasattr(each, "commands"):
            yield from _walk(each, (*path, name))
        else:
            yield " ".join((*path, name)), tuple(map(_parameter, each.params))


def _parameter(one: Any) -> Parameter:
    is_option = one.param_type_name == "option"
    return Parameter(
        one.opts[0] if is_option else (one.metavar or one.name),
        one.name,
        Settings.model_fields[one.name].annotation
        if one.name in Settings.model_fields and one.type_descriptor.annotation in (str, str | None)
        else one.type_descriptor.annotation,
        is_option,
        bool(getattr(one, "is_flag", False)),
        bool(getattr(one, "multiple", False)) or one.nargs == -1,
        one.required,
    )


def good(name: str, parameters: tuple[Parameter, ...], files: Mapping[str, str], *but: str) -> tuple[str, ...]:
    """The command with what it cannot do without, but for the parameters that are named."""
    # It would go on watching.
    words = [*name.split(), *(["--once"] if name == "audit watch" and "--once" not in but else [])]
    for one in parameters:
        if one.name in but or not (one.required or one.word == "names"):
            continue
        words += [one.name, one.sample(files)] if one.is_option else [one.sample(files)]
    return tuple(words)


def wrong_lines(
    name: str, parameters: tuple[Parameter, ...], files: Mapping[str, str], sweep: Sweep, most: int
) -> Iterator[Line]:
    """Options that are misspelled, given twice, without a value, or with one of another type."""
    options = [one for one in parameters if one.is_option]
    base = good(name, parameters, files)
    yield Line((*base, "--frobnicate"), ("--frobnicate",))
    yield Line((*base, "--frobnicate=1"), ("--frobnicate",))
    for one in options:
        rest = good(name, parameters, files, one.name)
        value = () if one.is_flag else (one.sample(files),)
        beside = tuple(files.get(word, word) for word in _COMPANIONS.get(one.name, ()))
        for misspelled in sweep.some(misspellings(one.name[2:], [each.name[2:] for each in options]), most):
            yield Line((*rest, f"--{misspelled}", *value), (f"--{misspelled}",))
        if one.is_flag:
            yield Line((*rest, f"{one.name}=yes"), (one.name,))
            continue
        yield Line((*rest, *beside, one.name), (one.name,))
        yield Line((*rest, *beside, one.name, ""), (one.name,))
        if not one.may_repeat:
            yield Line((*rest, *beside, one.name, *value, one.name, *value), (one.name,))
        for strange in sweep.some([each for each in VALUES if each and "\x00" not in each], most):
            yield Line((*rest, *beside, f"{one.name}={strange}"), () if one.may_be(strange) else (one.name,))


def lines_with_files(
    name: str, parameters: tuple[Parameter, ...], files: Mapping[str, str], given: Mapping[str, Path]
) -> Iterator[tuple[Line, str]]:
    """The command with each of some files in the place of each that it reads or writes; and what the file is."""
    for one in parameters:
        if not one.reads_a_file:
            continue
        rest = good(name, parameters, files, one.name)
        beside = tuple(files.get(word, word) for word in _COMPANIONS.get(one.name, ()))
        for what, path in given.items():
            value = (one.name, str(path)) if one.is_option else (str(path),)
            yield Line((*rest, *beside, *value), (str(path), one.name)), what
