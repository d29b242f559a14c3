"""Export of the log, one JSON document per line, and its verification with the public key alone. No I/O."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from service.log.canonical import Document, NotCanonical, canonical, parse_canonical
from service.log.checkpoints import Checkpoint, NotVerified, VerifierKey, verify
from service.log.commitments import FIGURES_COMMITMENT, opens
from service.log.merkle import Frontier, leaf_hash
from service.log.verification import Report, WeightsChains, in_words, overstated

#: First member of the first line.
FORMAT = "lethe-export/1"


@dataclass(frozen=True)
class ExportedLeaf:
    """A leaf as stored in the database."""

    index: int
    text: str
    hash: bytes
    root: bytes
    #: `leaf.event_members` of its event; None without an event.
    event: Document | None
    #: Opening of the figures that the leaf commits to; None if it states them, or has none.
    opening: Document | None = None


@dataclass(frozen=True)
class ExportedCheckpoint:
    """A checkpoint as stored in the database."""

    size: int
    note: str


def head(origin: str | None, exported_at: str) -> Document:
    """Return the first line."""
    return {"format": FORMAT, "log": origin, "exported_at": exported_at}


def lines(leaves: Iterable[ExportedLeaf], checkpoints: Iterable[ExportedCheckpoint]) -> Iterator[Document]:
    """Yield part of an export: `leaves` and `checkpoints` in order, each checkpoint after the leaves it covers."""
    waiting = iter(checkpoints)
    checkpoint = next(waiting, None)
    for leaf in leaves:
        while checkpoint is not None and checkpoint.size <= leaf.index:
            yield {"checkpoint": checkpoint.note}
            checkpoint = next(waiting, None)
        yield {
            "index": leaf.index,
            "leaf": leaf.text,
            "hash": leaf.hash.hex(),
            "root": leaf.root.hex(),
            "event": leaf.event,
            **({} if leaf.opening is None else {"opening": leaf.opening}),
        }
    while checkpoint is not None:
        yield {"checkpoint": checkpoint.note}
        checkpoint = next(waiting, None)


def unlogged(event: Document) -> Document:
    """Return the line of an event without a leaf."""
    return {"event": event}


def end(leaves: int, checkpoints: int) -> Document:
    """Return the last line."""
    return {"end": True, "leaves": leaves, "checkpoints": checkpoints}


#: Members that a leaf shares with its row of `events`.
_EVENT_MEMBERS = ("event", "request_id", "type", "time", "details")

#: Members of the lines of an export.
_MEMBERS = frozenset(
    {"format", "log", "exported_at", "index", "leaf", "hash", "root", "event", "opening", "checkpoint"}
    | {"end", "leaves", "checkpoints"}
)


def verify_export(
    records: Iterable[Mapping[str, Any]], keys: Collection[VerifierKey], against: Checkpoint | None = None
) -> Report:
    """Verify, leaf by leaf, that an export is the log signed by one of `keys`; findings name leaves by index.

    `records` are the lines of the export. `against` is a checkpoint from another source, whose signature the caller has
    verified: it reveals a log that was truncated, rolled back or rebuilt since. If nothing was changed since signing,
    the weights must also follow from one another.
    """
    verification = _Verification(keys, against)
    for record in records:
        try:
            verification.take(record)
        except (KeyError, TypeError, ValueError, AttributeError):
            at = verification.size
            verification.report.find(None, f"a line after leaf {at - 1} is not a line of an export")
    return verification.finish()


class _Verification:
    """State of the verification after the lines taken so far."""

    def __init__(self, keys: Collection[VerifierKey], against: Checkpoint | None) -> None:
        self.report = Report()
        self._keys = keys
        self._against = against
        self._tree = Frontier()
        #: Size up to which leaves and recorded roots agree, once they disagree beyond it.
        self._sound: int | None = None
        #: The next index; differs from the tree's size once a leaf is missing.
        self.size = 0
        #: Size of the newest checkpoint that agreed with the leaves.
        self._agreed = 0
        self._begun = self._ended = False
        self._checkpoints = 0
        self._chains = WeightsChains()
        #: Number of findings about the content of leaves, as opposed to later changes of them.
        self._breaks = 0
        self._compare()

    def take(self, record: Mapping[str, Any]) -> None:
        """Check one line."""
        for name in sorted(record.keys() - _MEMBERS):
            self.report.find(None, f"a line after leaf {self.size - 1} has an unknown member: {name!r}")
        if not self._begun:
            self._begun = True
            if record.get("format") != FORMAT:
                self.report.find(None, f"the export does not have the format {FORMAT}")
            return
        if self._ended:
            self.report.find(None, "there are lines after the end of the export")
        elif "leaf" in record:
            self._take_leaf(record)
        elif "checkpoint" in record:
            self._take_checkpoint(record["checkpoint"])
        elif "event" in record:
            self.report.find(None, f"event {record['event']['event']} has no leaf: the leaf was removed")
        elif record.get("end") is True:
            self._ended = True
            for name, found in (("leaves", self.report.leaves), ("checkpoints", self._checkpoints)):
                # In Python, True equals 1.
                if type(record[name]) is not int or record[name] != found:
                    self.report.find(None, f"the export had {record[name]} {name}, {found} are left")
        else:
            self.report.find(None, f"a line after leaf {self.size - 1} is not a line of an export")

    def finish(self) -> Report:
        """Return the report after the last line."""
        report, against = self.report, self._against
        if not self._ended:
            report.find(None, "the export is cut off: its last line is missing")
        if report.checkpoint is None:
            report.find(None, "no checkpoint is signed by a trusted key")
        elif report.checkpoint.size < self.size:
            report.find(report.checkpoint.size, "no checkpoint covers it and the following leaves: they are not signed")
        if against is not None:
            if report.checkpoint is not None and report.checkpoint.origin != against.origin:
                report.find(
                    None,
                    f"this is the log {report.checkpoint.origin}, but the earlier checkpoint is of {against.origin}",
                )
            if against.size > self.size:
                report.find(
                    self.size,
                    f"it and the following leaves are gone: the log had {against.size} leaves at the earlier "
                    "checkpoint, so it was truncated or rolled back",
                )
        return report

    def _take_leaf(self, record: Mapping[str, Any]) -> None:
        index: int = record["index"]
        if index > self.size:
            also = "" if index == self.size + 1 else f", and so are those after it up to {index - 1}"
            self.report.find(self.size, f"it is missing{also}")
            self._break(self.size)
        elif index < self.size:
            self.report.find(index, "it occurs twice, or out of order")
            self._break(index)
        self.report.leaves += 1
        self.size = max(self.size, index + 1)
        leaf = self._check_text(index, record)
        self._grow(index, record)
        if leaf is not None:
            self._follow(index, leaf, record.get("opening"))
        self._compare()

    def _check_text(self, index: int, record: Mapping[str, Any]) -> Document | None:
        """Check the leaf by itself and against its event; None if too little of it is left."""
        try:
            leaf = parse_canonical(record["leaf"].encode())
        except (NotCanonical, UnicodeEncodeError):
            self.report.find(index, "its text was changed: it is no longer canonical JSON")
            return None
        if leaf.get("request_id") is None:
            self.report.unrequested.append((index, in_words(leaf["type"], leaf["details"])))
        if leaf.get("index") != index:
            self.report.find(index, f"it was logged as leaf {leaf.get('index')}: it was moved")
        event: Document | None = record["event"]
        if event is None:
            self.report.find(index, "its event was removed")
            return None
        for name in sorted(event.keys() - {*_EVENT_MEMBERS}):
            self.report.find(index, f"its event has a member that was not logged: {name!r}")
        for member in _EVENT_MEMBERS:
            if not _same(leaf.get(member), event.get(member)):
                self.report.find(index, f"its event differs from the logged one: `{member}` was changed")
        return leaf

    def _follow(self, index: int, leaf: Document, opening: Document | None) -> None:
        """Check that the leaf's weights follow from earlier ones, unless an earlier finding would be repeated."""
        if len(self.report.findings) > self._breaks:
            return
        details = leaf["details"]
        if FIGURES_COMMITMENT in details:
            if opening is None or not opens(details, opening):
                self.report.find(index, "the figures that it commits to were removed or changed")
                self._breaks += 1
                return
            details = {**details, **opening["figures"]}
        if (wrong := overstated(details)) is not None:
            self.report.find(index, wrong)
            self._breaks += 1
        for found in self._chains.take(index, leaf):
            self.report.find(index, found)
            self._breaks += 1

    def _grow(self, index: int, record: Mapping[str, Any]) -> None:
        """Add the leaf to the tree, and compare the root with the one recorded at its addition."""
        digest, recorded = leaf_hash(record["leaf"].encode("utf-8", "surrogatepass")), bytes.fromhex(record["hash"])
        if digest != recorded:
            self.report.find(index, "its text does not match the recorded hash: one of them was changed")
        if self._sound is not None:
            return
        # Appending the recorded hash lets leaves after one with a changed text still verify.
        self._tree.append(recorded)
        if self._tree.root.hex() != record["root"]:
            self.report.find(
                index, "the tree differs from the one at its addition: the leaf was rewritten with its hash"
            )
            self._break(index)

    def _take_checkpoint(self, note: str) -> None:
        self._checkpoints += 1
        try:
            checkpoint = verify(note, self._keys)
        except NotVerified as error:
            self.report.find(None, error.detail)
            return
        self.report.signed += 1
        self.report.checkpoint = checkpoint
        if checkpoint.size > self.size:
            self.report.find(
                self.size, f"it is missing: a checkpoint of {checkpoint.size} leaves was signed; the log was truncated"
            )
        elif checkpoint.size < self.size:
            self.report.find(None, f"the checkpoint of {checkpoint.size} leaves is not where it was: it was moved")
        elif self._sound is None:
            if checkpoint.root == self._tree.root:
                self._agreed = checkpoint.size
            else:
                self._disagree(checkpoint)

    def _compare(self) -> None:
        """Compare with the checkpoint from another source once the tree has its size."""
        against = self._against
        if against is None or against.size != self.size or self._sound is not None:
            return
        if against.root != self._tree.root:
            # The log's own checkpoints may match it, so they do not show where it began to differ.
            self.report.find(
                None,
                f"its first {against.size} leaves differ from the earlier checkpoint: the log was rewritten, or "
                "rolled back and continued, and signed again",
            )
            self._break(self._agreed)

    def _disagree(self, checkpoint: Checkpoint) -> None:
        """Leaves, hashes and roots agree with each other but not with the signed root: all were changed together."""
        last = checkpoint.size - 1
        upto = "" if last <= self._agreed else f", or one after it up to {last},"
        self.report.find(
            self._agreed if checkpoint.size else None,
            f"it{upto} was rewritten, and the tree with it: the checkpoint that was signed differs",
        )
        self._break(self._agreed)

    def _break(self, index: int) -> None:
        if self._sound is None:
            self._sound = index


def _same(logged: object, found: object) -> bool:
    """Return whether two values are the same JSON: 1 and 1.0 are, 1 and true are not."""
    try:
        return canonical(logged) == canonical(found)
    except NotCanonical:
        return False
