"""Published facts about a model, an import and a version, and checksums of the published files."""

import errno
import mmap
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from projector.forgetting.canaries import Canaries
from projector.graph.columns import Column
from service.domain.versions import Drift
from service.errors import Unavailable
from service.private_files import write_private

#: Bytes per block; a multiple of every entry's width.
BLOCK = 1 << 18
_FILE = "checksums"

#: The CRC-32 of each block of each file, by file name.
Checksums = Mapping[str, Sequence[int]]


class PublicationDamaged(Unavailable):
    """A file of a publication differs from what was written."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} is damaged: it differs from what was published. Restarting the unlearner writes it again.",
            "Have the operator restart the unlearner.",
        )


def of_bytes(data: memoryview) -> list[int]:
    """Return the checksum of each block of a file's bytes."""
    return [zlib.crc32(data[start : start + BLOCK]) for start in range(0, len(data), BLOCK)]


def of_file(path: Path) -> list[int]:
    """Return the checksum of each block of a file. Raises OSError."""
    with path.open("rb") as file:
        return [zlib.crc32(block) for block in iter(lambda: file.read(BLOCK), b"")]


def after_change(path: Path, before: Sequence[int], changed: Collection[int]) -> list[int]:
    """Return a file's checksums after the blocks `changed` were modified. Raises OSError."""
    found = list(before)
    with path.open("rb") as file:
        for block in changed:
            file.seek(block * BLOCK)
            found[block] = zlib.crc32(file.read(BLOCK))
    return found


def with_checksum(document: bytes) -> bytes:
    """Return a one-line document followed by a line with its checksum."""
    return b"%s\n%08x\n" % (document, zlib.crc32(document))


def document_of(data: bytes, path: Path) -> bytes:
    """Return the document sealed in `data`, the content of the file `path`.

    Raises PublicationDamaged, and FileNotFoundError for a file that is being overwritten and removed.
    """
    if data.startswith(b"\0"):
        raise FileNotFoundError(errno.ENOENT, f"{path} is being removed")
    document, _, rest = data.partition(b"\n")
    if with_checksum(document) != data or not rest:
        raise PublicationDamaged(path)
    return document


def write_checksums(folder: Path, checksums: Checksums | None) -> None:
    """Store the checksums of the files in `folder`; None while the files change. Raises OSError."""
    write_private(folder / _FILE, with_checksum(msgspec.json.encode(checksums)))


def read_checksums(folder: Path) -> Checksums | None:
    """Read the checksums of the files in `folder`; None while the files change.

    Raises FileNotFoundError if they are gone, and PublicationDamaged.
    """
    path = folder / _FILE
    document = document_of(path.read_bytes(), path)
    try:
        return msgspec.json.decode(document, type=dict[str, list[int]] | None)
    except msgspec.DecodeError:
        raise PublicationDamaged(path) from None


def check(folder: Path, files: Mapping[str, mmap.mmap], expected: Checksums) -> None:
    """Raise PublicationDamaged if one of a folder's files, by name, does not match its checksums."""
    for name, data in files.items():
        if of_bytes(memoryview(data)) != list(expected.get(name, ())):
            raise PublicationDamaged(folder / name)


#: Format number of publications; another number means another version of Lethe.
FORMAT = 3


@dataclass(frozen=True)
class ModelFacts:
    """Facts that stay the same between imports."""

    name: str
    #: Rows of the graph at training, including nodes deleted since.
    nodes: int
    #: Columns of the features.
    features: int
    classes: tuple[str, ...]
    hops: int
    combine: str
    propagation: str
    loss: str
    #: The regularization strength lambda.
    regularization: float
    #: Condition number of the features at training.
    condition_number: float
    #: Columns of a table that the first features come from; None if they have no names.
    columns: tuple[Column, ...] | None = None
    #: Shares of nodes predicted correctly at training: `train`, `val`, `test`.
    accuracy: Mapping[str, float | None] | None = None
    #: For real-valued targets, the figures of `model_store.manifest.Fit`; None for classes.
    regression: Mapping[str, float | None] | None = None
    #: What no deletion changes, as `model_store.manifest.Manifest.frozen_parts` describes it.
    frozen_parts: tuple[str, ...] = ()
    #: Whether edges have weights.
    weighted: bool = False


@dataclass(frozen=True)
class NoiseFacts:
    """Noise of a published version, and the used share of the promise."""

    epsilon: float
    delta: float
    #: The planned number of versions K, and how many of them are used up.
    planned: int
    used: float
    #: mu of this version alone.
    mu: float
    #: Standard deviation of the noise in each weight.
    sigma: float


@dataclass(frozen=True)
class VersionFacts(Drift):
    """Facts that change with each version."""

    version: int
    live_nodes: int
    #: Edges between live nodes.
    edges: int
    #: Rank of the live nodes' features.
    rank: int
    #: Bound on the distance of W to retraining; None for a loss without certificate and for weights published with
    #: noise.
    distance_bound: float | None
    #: The same, relative to |W|; None too for W = 0.
    distance_bound_relative: float | None
    #: Device that computed it.
    device: str
    #: None without noise.
    noise: NoiseFacts | None = None


@dataclass(frozen=True)
class Facts:
    """Facts about the version that a reader serves, all from the same moment."""

    model: ModelFacts
    served: VersionFacts


class Hashing(msgspec.Struct, frozen=True):
    """Parameters that spread entries over a hash table."""

    #: Number of home places; a few more follow them.
    named: int
    #: Initial value of the hash.
    key: int


class ModelManifest(msgspec.Struct, frozen=True, tag_field="format", tag=FORMAT):
    """Manifest beside the files of an import."""

    facts: ModelFacts
    canaries: Canaries | None
    ids: Hashing
    edges: Hashing
    #: Bytes of each file.
    sizes: Mapping[str, int]


class VersionManifest(msgspec.Struct, frozen=True, tag_field="format", tag=FORMAT):
    """Manifest beside the files of a version."""

    facts: VersionFacts
    checksums: Checksums
