"""Sealed JSON: documents that carry their own SHA-256, read strictly field by field.

A checksummed document is one JSON object whose `sha256` member is the digest of the whole file with that digest's 64
characters written as zeros, so a change of any byte of the file shows.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

from model_store.disk.durable import TRAIN_AGAIN, damaged, read_file
from model_store.errors import NotAStore

#: The format of every document of a store that this version writes and reads.
FORMAT = 3
#: A JSON object as Python values.
Document = Mapping[str, Any]

_DIGEST = "sha256"
#: Whole numbers are kept in 64 bits, here and in the database.
_LARGEST = 2**63 - 1
_NO_DIGEST = "0" * 64
_Enum = TypeVar("_Enum", bound=StrEnum)
_OTHER_VERSION = f"It was written by another program or another version of Lethe; {TRAIN_AGAIN}"


def checksummed(document: Document, *, indent: int | None = None) -> bytes:
    """The bytes of `document` with its digest; ValueError for NaN and infinities."""
    separators = (",", ":") if indent is None else None
    text = json.dumps({**document, _DIGEST: _NO_DIGEST}, indent=indent, separators=separators, allow_nan=False) + "\n"
    digest = hashlib.sha256(text.encode()).hexdigest()
    head, _, tail = text.rpartition(_NO_DIGEST)
    return (head + digest + tail).encode()


def read_checksummed(path: Path) -> "Fields":
    """The document in `path`, its digest checked.

    Raises StoreDamaged when the file is missing or altered, NotAStore when it is no checksummed document.
    """
    data = read_file(path)
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise damaged(path, "is not the JSON document that was written there: it is truncated or altered") from error
    if not isinstance(document, dict) or _DIGEST not in document:
        raise NotAStore(
            f"{path} was not written by Lethe: it carries no digest of its own.", "Name the folder of a model store."
        )
    if not _digest_holds(data, document[_DIGEST]):
        raise damaged(path, "does not match the digest it carries")
    return Fields({name: value for name, value in document.items() if name != _DIGEST}, path)


def _digest_holds(data: bytes, digest: object) -> bool:
    if not isinstance(digest, str) or len(digest) != len(_NO_DIGEST):
        return False
    head, found, tail = data.rpartition(digest.encode())
    return bool(found) and hashlib.sha256(head + _NO_DIGEST.encode() + tail).hexdigest() == digest


def _is_text(value: object) -> TypeGuard[str]:
    # An escape in JSON may stand for half of a character, which no file and no terminal takes.
    return isinstance(value, str) and (value.isascii() or not any("\ud800" <= one <= "\udfff" for one in value))


class Fields:
    """Reads the members of a JSON object one by one; NotAStore for a missing, unknown or ill-typed one."""

    def __init__(self, document: Document, source: Path | str) -> None:
        self._rest = dict(document)
        self._source = source

    def check_format(self) -> None:
        """Raises NotAStore unless the field `format` is the one that this version reads."""
        found = self.integer("format")
        if found != FORMAT:
            raise NotAStore(
                f"{self._source} has format {found}; this version of Lethe reads format {FORMAT}.",
                f"Use the version of Lethe that wrote it, or {TRAIN_AGAIN}",
            )

    def integer(self, name: str) -> int:
        """A whole number of at least 0, of 63 bits."""
        value = self._take(name)
        if type(value) is not int or not 0 <= value <= _LARGEST:
            raise self.wrong(name, "a whole number of at least 0", value)
        return value

    def number(self, name: str) -> float:
        """A finite number; whole ones are turned into floats."""
        value = self._take(name)
        if type(value) is int and abs(value) <= _LARGEST:
            return float(value)
        if type(value) is not float or not math.isfinite(value):
            raise self.wrong(name, "a number", value)
        return value

    def optional_number(self, name: str) -> float | None:
        """A number or null."""
        return None if self._is_null(name) else self.number(name)

    def boolean(self, name: str) -> bool:
        """true or false."""
        value = self._take(name)
        if type(value) is not bool:
            raise self.wrong(name, "true or false", value)
        return value

    def text(self, name: str) -> str:
        """A string that UTF-8 can encode."""
        value = self._take(name)
        if not _is_text(value):
            raise self.wrong(name, "a string", value)
        return value

    def choice(self, name: str, kind: type[_Enum]) -> _Enum:
        """A member of the enumeration `kind`, by its value."""
        value = self._take(name)
        try:
            return kind(value)
        except ValueError as error:
            raise self.wrong(name, "one of " + ", ".join(kind), value) from error

    def integers(self, name: str) -> list[int]:
        """A list of whole numbers of 64 bits, negative ones included."""
        value = self._take(name)
        if not isinstance(value, list | tuple) or not all(
            type(item) is int and abs(item) <= _LARGEST for item in value
        ):
            raise self.wrong(name, "a list of whole numbers", value)
        return list(value)

    def optional_integers(self, name: str) -> list[int] | None:
        """A list of whole numbers, or null."""
        return None if self._is_null(name) else self.integers(name)

    def texts(self, name: str) -> list[str]:
        """A list of strings."""
        value = self._take(name)
        if not isinstance(value, list | tuple) or not all(map(_is_text, value)):
            raise self.wrong(name, "a list of strings", value)
        return list(value)

    def section(self, name: str) -> "Fields":
        """A nested object, to be read with its own `finish`."""
        value = self._take(name)
        if not isinstance(value, dict):
            raise self.wrong(name, "an object", value)
        return Fields(value, f"{self._source}: {name}")

    def optional_section(self, name: str) -> "Fields | None":
        """A nested object, or null."""
        return None if self._is_null(name) else self.section(name)

    def sections(self, name: str) -> dict[str, "Fields"]:
        """An object whose members are objects."""
        section = self.section(name)
        return {member: section.section(member) for member in list(section._rest)}

    def list_of_sections(self, name: str) -> list["Fields"]:
        """A list of objects."""
        value = self._take(name)
        if not isinstance(value, list | tuple) or not all(isinstance(item, dict) for item in value):
            raise self.wrong(name, "a list of objects", value)
        return [Fields(item, f"{self._source}: {name}[{place}]") for place, item in enumerate(value)]

    def finish(self) -> None:
        """Raises NotAStore when members are left that nobody asked for."""
        if self._rest:
            names = ", ".join(repr(name) for name in sorted(self._rest))
            raise NotAStore(f"{self._source}: unknown field(s) {names}.", _OTHER_VERSION)

    def _is_null(self, name: str) -> bool:
        if self._rest.get(name, 0) is None:
            del self._rest[name]
            return True
        return False

    def _take(self, name: str) -> Any:
        if name not in self._rest:
            raise NotAStore(f"{self._source}: field {name!r} is missing.", _OTHER_VERSION)
        return self._rest.pop(name)

    def wrong(self, name: str, expected: str, value: object) -> NotAStore:
        """The error for a field that is not what it must be."""
        shown = repr(value) if len(repr(value)) <= 60 else repr(value)[:57] + "..."
        return NotAStore(f"{self._source}: field {name!r} must be {expected}, not {shown}.", _OTHER_VERSION)
