"""Checksummed JSON: documents with their own SHA-256, read back as the dataclasses they were written from.

A checksummed document is one JSON object. Its `sha256` member is the digest of the whole file with that digest's 64
characters written as zeros, so a change of any byte shows.
"""

import hashlib
import json
from dataclasses import fields
from datetime import UTC, datetime
from functools import cache, reduce
from operator import or_
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec
import numpy as np

from model_store.disk.durable import TRAIN_AGAIN, damaged, read_file
from model_store.errors import NotAStore

#: The format of every store document that this version reads and writes.
FORMAT = 4

_UNDECIDED = "0" * 64
_T = TypeVar("_T")
#: Integers fit 64 bits, here and in the database; negative ones occur only in lists.
_COUNT = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_WHOLE = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_TIME = Annotated[datetime, msgspec.Meta(tz=True)]
_OTHER_VERSION = f"It was written by another program or another version of Lethe; {TRAIN_AGAIN}"


class _Header(msgspec.Struct):
    """The members of every document besides its own."""

    sha256: object = None
    format: object = None


def checksummed(document: object, *, indent: int | None = None) -> bytes:
    """Return the bytes of a dataclass or mapping, with format and digest. Raises ValueError for NaN and infinities."""
    # The remaining types are numpy numbers.
    members = msgspec.to_builtins(document, builtin_types=(datetime,), enc_hook=np.generic.item)
    text = json.dumps(
        {"format": FORMAT, **members, "sha256": _UNDECIDED},
        indent=indent,
        separators=(",", ":") if indent is None else None,
        allow_nan=False,
        default=lambda time: time.astimezone(UTC).isoformat(),
    )
    digest = hashlib.sha256(f"{text}\n".encode()).hexdigest()
    head, _, tail = text.rpartition(_UNDECIDED)
    return f"{head}{digest}{tail}\n".encode()


def read_checksummed(path: Path, kind: type[_T], *, whole: bool = True) -> _T:
    """Return the dataclass `kind` in `path`, with its digest checked. Unless `whole`, unknown members are allowed.

    Raises StoreDamaged if the file is missing or altered, NotAStore if it is not such a document of this format.
    """
    data = read_file(path)
    try:
        header = msgspec.json.decode(data, type=_Header)
        if header.sha256 is None:
            raise NotAStore(
                f"{path} was not written by Lethe: it contains no digest of itself.",
                "Name the folder of a model store.",
            )
        if not _digest_holds(data, header.sha256):
            raise damaged(path, "does not match its own digest")
        if header.format != FORMAT:
            raise NotAStore(
                f"{path} has format {header.format!s:.20}; this version of Lethe reads format {FORMAT}.",
                f"Use the version of Lethe that wrote it, or {TRAIN_AGAIN}",
            )
        exact = _exact(kind, whole=whole, bases=(_Header,))  # type: ignore[arg-type]  # a class can be hashed
        found = msgspec.json.decode(data, type=exact)
    except msgspec.ValidationError as error:
        raise NotAStore(f"{path}: {error}.", _OTHER_VERSION) from error
    except (ValueError, RecursionError) as error:
        raise damaged(path, "is truncated or altered: it is not valid JSON") from error
    return msgspec.convert(found, kind, from_attributes=True)


def wrong(source: Path, name: str, expected: str, value: object) -> NotAStore:
    """Return the error for a member with an invalid value."""
    return NotAStore(f"{source}: field {name!r} must be {expected}, not {value!r:.60}.", _OTHER_VERSION)


def _digest_holds(data: bytes, digest: object) -> bool:
    if not isinstance(digest, str) or len(digest) != len(_UNDECIDED):
        return False
    head, found, tail = data.rpartition(digest.encode())
    return bool(found) and hashlib.sha256(head + _UNDECIDED.encode() + tail).hexdigest() == digest


@cache
def _exact(kind: type[Any], *, whole: bool = True, bases: tuple[type, ...] = ()) -> type[Any]:
    """Return a dataclass as a strict msgspec type: no member may be missing, and if `whole` none may be unknown."""
    hints = get_type_hints(kind)
    members = [(field.name, _exact_hint(hints[field.name], _COUNT)) for field in fields(kind)]
    return msgspec.defstruct(kind.__name__, members, bases=bases, kw_only=True, forbid_unknown_fields=whole)


def _exact_hint(hint: Any, number: Any) -> Any:
    if hasattr(hint, "__dataclass_fields__"):
        return _exact(hint)
    origin = get_origin(hint)
    if origin is None:
        return {int: number, datetime: _TIME}.get(hint, hint)
    inner = tuple(_exact_hint(each, _WHOLE if origin is tuple else number) for each in get_args(hint))
    return reduce(or_, inner) if origin is UnionType else origin[inner]
