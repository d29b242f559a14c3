"""The erasure ledger: encrypted tombstones, in order, outside of home and database.

See docs/adr/0015-the-erasure-ledger.md. One unlearner appends, under its lease. All methods block.
"""

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import unquote, urlsplit

from service import private_files
from service.errors import StateMismatch, Unavailable
from service.ledger.places import FolderPlace, Place
from service.ledger.sealed_entries import NO_HASH, Entry, Record, Trimmed, altered, seal, unseal

_KEY_FILE = re.compile(r"ledger-([1-9][0-9]*)\.key")
#: The first key until the first entry is written: a ledger whose key has its final name is expected to have entries.
_UNUSED_KEY = "ledger-1.key.new"
#: Time without an answer after which it counts as unavailable (seconds). A bucket's attempts end before.
_SILENT_S = 60.0
#: Attempts to append while another process does.
_MOST_ATTEMPTS = 3


def open_place(url: str) -> Place:
    """Return the place that LETHE_LEDGER names: a path, file:///path or s3://bucket/prefix.

    Raises ConfigurationError if the package for buckets is not installed.
    """
    if url.startswith("s3://"):
        from service.ledger.bucket import BucketPlace

        return BucketPlace.at(url)
    return FolderPlace(Path(unquote(urlsplit(url).path)) if url.startswith("file://") else Path(url))


def key_folder(home: Path) -> Path:
    """Return the folder of the ledger's keys in a LETHE_HOME: the unlearner's part of the key folder."""
    return home / "keys" / "unlearner"


def read_keys(folder: Path) -> dict[int, bytes]:
    """Return the ledger's keys in a folder, by number. Raises KeyMissing and ConfigurationError."""
    if not folder.is_dir():
        return {}
    found = (_KEY_FILE.fullmatch(path.name) for path in folder.iterdir())
    return {int(match[1]): private_files.read_key(folder / match[0]) for match in found if match}


def add_key(folder: Path) -> Path:
    """Make the next key, which encrypts later entries, and return its file."""
    path = folder / f"ledger-{max(read_keys(folder), default=0) + 1}.key"
    private_files.create_key(path)
    return path


class ErasureLedger:
    """The ledger of one model."""

    def __init__(self, place: Place, keys: Path, model: str) -> None:
        """`keys` is the unlearner's part of the key folder."""
        self._place = place
        self._folder = keys
        self._model = model
        self._keys: Mapping[int, bytes] = {}
        #: The newest entry, once read.
        self._head: Entry | None = None
        self._failing_since: float | None = None
        self._failure: str | None = None
        #: When the attempt in progress began.
        self._asked_at: float | None = None

    @classmethod
    def of(cls, url: str | None, home: Path, model: str) -> "ErasureLedger | None":
        """Return the ledger that a setting names, with the keys in a LETHE_HOME; None if it names none."""
        return None if url is None else cls(open_place(url), key_folder(home), model)

    @property
    def name(self) -> str:
        """Where it is."""
        return self._place.name

    @property
    def head(self) -> Entry | None:
        """The newest entry that `open` found or `append` wrote."""
        return self._head

    @property
    def failing_s(self) -> float:
        """Seconds since the first of the failed attempts; 0 if the newest succeeded. Any thread may ask."""
        since = self._failing_since if self._failing_since is not None else self._silent_since()
        return 0.0 if since is None else time.monotonic() - since

    @property
    def failure(self) -> str | None:
        """Why the newest attempt to open it or to append failed or hangs; None after a success."""
        if self._silent_since() is not None:
            return f"The erasure ledger {self.name} does not answer."
        return self._failure

    def _silent_since(self) -> float | None:
        """Return when an attempt began that still waits, as for a network file system whose server is away."""
        asked_at = self._asked_at
        return asked_at if asked_at is not None and time.monotonic() - asked_at > _SILENT_S else None

    def open(self) -> Entry | None:
        """Read the newest entry; None for a new ledger, whose key is made by the first `append`.

        Raises StateMismatch if entries are missing, or the ledger belongs to another model; KeyMissing if it belongs to
        another home; and Unavailable.
        """
        with self._counted():
            return self._open()

    def _open(self) -> Entry | None:
        self._keys = read_keys(self._folder)
        numbers = self._place.numbers()
        if numbers and not self._keys and (self._folder / _UNUSED_KEY).exists():
            # A crash, or an outage, between the first entry and this.
            self._keep_first_key()
        if not numbers:
            if self._keys:
                raise StateMismatch(
                    f"The erasure ledger {self.name} is empty, and this home has written to one before.",
                    "Mount or name its folder or bucket. To begin a new ledger, move the files ledger-*.key out of "
                    "LETHE_HOME/keys/unlearner.",
                )
            self._head = None
            return None
        head = self._read(numbers[-1])
        lacking = sorted(set(range(head.trimmed.first, head.number)) - set(numbers))
        if lacking:
            raise _gap(self.name, lacking)
        self._head = head
        return head

    def append(self, record: Record) -> Entry:
        """Write the next entry, durably, and return it; the same record again changes nothing.

        Raises StateMismatch if another home writes to the ledger, and Unavailable.
        """
        with self._counted():
            return self._append(record, None)

    def entries(self) -> Iterator[Entry]:
        """Yield every entry, oldest first, after checking that each follows the one before. Raises as `open`."""
        head = self.open()
        if head is None:
            return
        previous = head.trimmed.previous
        for number in range(head.trimmed.first, head.number + 1):
            entry = self._read(number)
            if entry.previous != previous:
                raise altered(self.name, number)
            previous = entry.sha256
            yield entry
        if previous != head.sha256:
            raise altered(self.name, head.number)

    def trim(self, keep: timedelta) -> int:
        """Remove the entries older than `keep`, except the newest; return how many.

        An entry first records where the ledger begins from then on. Safe to repeat after a crash.
        """
        oldest, last, first = datetime.now(UTC) - keep, None, None
        for entry in self.entries():
            if datetime.fromisoformat(entry.written_at) >= oldest or entry == self._head:
                first = entry
                break
            last = entry
        head = self._head
        if last is not None and first is not None and head is not None:
            trimmed = Trimmed(first.number, last.sha256, last.record.version)
            self._append(replace(head.record, tombstones=(), requests={}), trimmed)
        if self._head is None:
            return 0
        old = [number for number in self._place.numbers() if number < self._head.trimmed.first]
        for number in old:
            self._place.remove(number)
        return len(old)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Keep since when the ledger is unavailable, and why."""
        self._asked_at = time.monotonic()
        try:
            yield
        except Unavailable as error:
            self._failure = error.detail
            if self._failing_since is None:
                self._failing_since = time.monotonic()
            raise
        finally:
            self._asked_at = None
        self._failure = self._failing_since = None

    def _append(self, record: Record, trimmed: Trimmed | None) -> Entry:
        keys = self._keys
        if not keys:
            private_files.secure_folder(self._folder, create=True)
            private_files.create_key(self._folder / _UNUSED_KEY)
            keys = {1: private_files.read_key(self._folder / _UNUSED_KEY)}
        for _ in range(_MOST_ATTEMPTS):
            head = self._head
            number, previous = (1, NO_HASH) if head is None else (head.number + 1, head.sha256)
            begins = trimmed or (Trimmed() if head is None else head.trimmed)
            sealed, entry = seal(number, previous, record, begins, datetime.now(UTC).isoformat(), keys)
            if self._place.create(number, sealed):
                if not self._keys:
                    self._keep_first_key()
                self._head = entry
                return entry
            # Taken: by an attempt of ours whose answer was lost, by an unlearner that lost its lease, or by `trim`,
            # which may have a newer key.
            if not self._keys and (self._folder / _UNUSED_KEY).exists():
                self._keep_first_key()
            self._keys = keys = read_keys(self._folder)
            found = self._read(number)
            if found.previous != previous:
                raise altered(self.name, number)
            self._head = found
            if trimmed is None and found.record.version == record.version:
                return found
            if found.record.number > record.number:
                break
        raise StateMismatch(
            f"Another home writes to the erasure ledger {self.name}.", "Stop it, or give each home a ledger of its own."
        )

    def _keep_first_key(self) -> None:
        (self._folder / _UNUSED_KEY).rename(self._folder / "ledger-1.key")
        private_files.sync_folder(self._folder)
        self._keys = read_keys(self._folder)

    def _read(self, number: int) -> Entry:
        entry = unseal(self._place.read(number), number, self._keys, self.name)
        if entry.record.model != self._model:
            raise StateMismatch(
                f"The erasure ledger {self.name} belongs to the model {entry.record.model!r}.",
                "Set LETHE_LEDGER to the ledger of the served model.",
            )
        return entry


def _gap(place: str, lacking: list[int]) -> StateMismatch:
    some = ", ".join(map(str, lacking[:5])) + (", …" if len(lacking) > 5 else "")
    return StateMismatch(
        f"The erasure ledger {place} lacks {len(lacking)} of its entries: {some}.",
        "Restore them from a copy, or the bucket's earlier versions of these objects. Without one, begin a new ledger: "
        "move it and the files ledger-*.key of LETHE_HOME/keys/unlearner away.",
    )
