"""Results of a verification: its report, events without a request, and whether successive weights fit together."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from projector.forgetting.status import LARGEST_TOLERANCE, RepairStatus
from service.domain.states import EventType
from service.log.checkpoints import Checkpoint
from service.log.commitments import FIGURES_COMMITMENT


@dataclass(frozen=True)
class Fault:
    """One deviation from what was logged and signed."""

    #: Index of the leaf, counted from 0; None if no single leaf is concerned.
    index: int | None
    what: str

    def __str__(self) -> str:
        return self.what if self.index is None else f"leaf {self.index}: {self.what}"


@dataclass
class Report:
    """Result of one verification; an empty `findings` means that nothing is wrong."""

    findings: list[Fault] = field(default_factory=list)
    #: Leaves checked.
    leaves: int = 0
    #: Checkpoints with a valid signature by a trusted key.
    signed: int = 0
    #: Events without a request: leaf index, and a sentence.
    unrequested: list[tuple[int, str]] = field(default_factory=list)
    #: Fingerprint of a receipt, as printed on paper; None for an export.
    fingerprint: str | None = None
    #: The newest trusted checkpoint.
    checkpoint: Checkpoint | None = None

    @property
    def is_good(self) -> bool:
        """Whether there are no findings."""
        return not self.findings

    def find(self, index: int | None, what: str) -> None:
        """Add a finding."""
        self.findings.append(Fault(index, what))


#: Events that change the weights without a request.
OF_THE_MODEL = (EventType.IMPORTED, EventType.RECOVERED, EventType.CERTIFIED)


@dataclass(frozen=True)
class UnrequestedEvent:
    """An event without a request, for people."""

    #: Index of its leaf.
    index: int
    at: datetime
    what: str

    @classmethod
    def of(cls, leaf: Mapping[str, Any]) -> "UnrequestedEvent":
        """Read a leaf."""
        return cls(leaf["index"], datetime.fromisoformat(leaf["time"]), in_words(leaf["type"], leaf["details"]))


def in_words(event_type: str, details: Mapping[str, Any]) -> str:
    """Describe an event of `UNREQUESTED` in a sentence; for other events, return type and content unchanged."""
    said = dict(details)
    if event_type == EventType.IMPORTED:
        return (
            f"a newly trained model replaced {said.get('model')}: version {said.get('model_version_before')} "
            f"to {said.get('model_version_after')}; it contained data that earlier requests had deleted, removed "
            f"before it was served: {_counts(said, 'excluded_')}"
        )
    if event_type == EventType.RECOVERED:
        database = said.get("database_before") or "none"
        return (
            f"`lethe recover` continued with version {said.get('model_version_after')} of {said.get('model')} from "
            f"the store (version {said.get('store_before')}) and the database (version {database}); deleted "
            f"again: {_counts(said, '')}; deleted by requests that this database does not know: "
            f"{said.get('unknown_nodes')} nodes"
        )
    if event_type == EventType.CERTIFIED:
        return (
            f"from version {said.get('model_version_after')} of {said.get('model')} on, what is published has noise: "
            f"epsilon {said.get('publication_epsilon'):g} and delta {said.get('publication_delta'):g} over "
            f"{said.get('publications_planned')} versions after a deletion"
        )
    if event_type == EventType.LOG_KEY_ADDED:
        return f"from here on checkpoints are signed with key {said.get('number')} as well, {said.get('public_key')}"
    return f"{event_type}: {said}"


def _counts(details: Mapping[str, Any], prefix: str) -> str:
    nodes, features, edges = (details.get(f"{prefix}{kind}") for kind in ("nodes", "features", "edges"))
    return f"{nodes} nodes, the features of {features} nodes, {edges} edges"


def overstated(details: Mapping[str, Any]) -> str | None:
    """Return what is wrong with the bound of an event whose `details` claim retrained weights.

    None if the bound is right or nothing is claimed: the figures are only committed to, or the weights are not called
    retrained. Raises TypeError if they are not numbers.
    """
    if details.get("repair") != RepairStatus.CONVERGED or (
        FIGURES_COMMITMENT in details and "distance_bound_after_relative" not in details
    ):
        return None
    bound, tolerance = details.get("distance_bound_after_relative"), details.get("repair_tolerance")
    if bound is None or tolerance is None:
        return "it claims retraining but states no bound on the distance, or no tolerance"
    if not 0.0 < tolerance <= LARGEST_TOLERANCE:
        return f"its tolerance is {tolerance:g}; tolerances above {LARGEST_TOLERANCE:g} do not count as retrained"
    if not bound <= tolerance:
        return f"it claims retraining, but its bound {bound:g} is above the tolerance {tolerance:g}"
    return None


#: Events with the figures of a batch; a request's first is `applied`.
_OF_BATCH = (EventType.APPLIED, EventType.REPAIRED, EventType.NOT_REPAIRED, EventType.COMPLETED)
#: Members that name a version and the digest of its weights.
_BEFORE = ("model_version_before", "weights_sha256_before")
_AFTER = ("model_version_after", "weights_sha256_after")
_REPAIRED = ("repair_version", "repair_weights_sha256")


class WeightsChains:
    """The versions of every model in a log, collected from the leaves taken so far; memory grows with their number."""

    def __init__(self) -> None:
        self._chains: dict[str, _Chain] = {}

    def take(self, index: int, leaf: Mapping[str, Any]) -> Iterator[str]:
        """Yield contradictions between the next leaf and earlier ones; nothing for a leaf without weights."""
        event, details = leaf.get("type"), leaf.get("details")
        if not isinstance(details, Mapping) or not isinstance(details.get("model"), str):
            return
        if event in _OF_BATCH or event in OF_THE_MODEL:
            try:
                reported = _Reported.read(EventType(event), details)
            except ValueError as error:
                yield str(error)
                return
            if reported is not None:
                yield from self._chains.setdefault(details["model"], _Chain(details["model"])).take(index, reported)


@dataclass(frozen=True)
class _Version:
    """A version named by an event."""

    number: int
    #: SHA-256 of its weights.
    digest: bytes

    @classmethod
    def read(cls, details: Mapping[str, Any], members: tuple[str, str]) -> "_Version | None":
        """Return None if the event does not name it. Raises ValueError."""
        number, digest = (details.get(member) for member in members)
        if number is None and digest is None:
            return None
        try:
            if isinstance(number, int) and not isinstance(number, bool) and isinstance(digest, str):
                return cls(number, bytes.fromhex(digest))
        except ValueError:
            pass
        raise ValueError(f"its `{members[0]}` and `{members[1]}` are not a version and a digest")


@dataclass(frozen=True)
class _Reported:
    """Versions reported by one event."""

    event: EventType
    #: None for a recovery, which may continue from a version unknown to this log.
    before: _Version | None
    after: _Version
    #: Version in which a repair ended.
    repaired: _Version | None

    @classmethod
    def read(cls, event: EventType, details: Mapping[str, Any]) -> "_Reported | None":
        """Return None for an event without a version. Raises ValueError."""
        after = _Version.read(details, _AFTER)
        if after is None:
            return None
        if event is EventType.RECOVERED:
            return cls(event, None, after, None)
        before = _Version.read(details, _BEFORE)
        # A certification may skip numbers unknown to a restored log.
        follows = before is not None and after.number == before.number + 1
        if not follows and (before is None or event is not EventType.CERTIFIED or after.number <= before.number):
            raise ValueError(f"it names version {after.number} but not the one before it")
        return cls(event, before, after, _Version.read(details, _REPAIRED))


class _Chain:
    """The versions of one model."""

    def __init__(self, model: str) -> None:
        self._model = model
        #: Digest of every reported version, and the first leaf that reported it.
        self._digests: dict[int, tuple[bytes, int]] = {}
        #: The newest version; every model begins with 0.
        self._newest = 0
        #: The newest version before the latest recoveries; a batch after it may still be waiting for its `applied`
        #: event.
        self._before_recovery: int | None = None
        self._contradicted: set[int] = set()

    def take(self, index: int, reported: _Reported) -> Iterator[str]:
        """Yield contradictions between the next event and earlier ones."""
        yield from self._place(reported)
        for version in (reported.before, reported.after, reported.repaired):
            if version is not None:
                yield from self._compare(index, version)

    def _place(self, reported: _Reported) -> Iterator[str]:
        """Check that the event comes where its version was made, or after it."""
        number = reported.after.number
        if reported.event is EventType.RECOVERED:
            yield from self._recover(number)
        elif reported.event in (EventType.IMPORTED, EventType.CERTIFIED) or (
            reported.event is EventType.APPLIED and number not in self._digests
        ):
            assert reported.before is not None
            yield from self._make(reported.before.number, number, late=reported.event is EventType.APPLIED)
        elif number not in self._digests:
            yield f"no earlier leaf records that version {number} of {self._model} was applied"
        if (
            reported.repaired is not None
            and reported.repaired.number != number
            and reported.repaired.number not in self._digests
        ):
            yield from self._make(reported.repaired.number - 1, reported.repaired.number, late=False)

    def _recover(self, number: int) -> Iterator[str]:
        if number <= self._newest:
            yield self._not_grown(number)
            return
        if self._before_recovery is None:
            self._before_recovery = self._newest
        self._newest = number

    def _make(self, before: int, number: int, *, late: bool) -> Iterator[str]:
        """Check that version `number` follows from `before`; `late` if its event may come after a recovery's."""
        if number > self._newest:
            if before > self._newest:
                yield (
                    f"it continues from version {before} of {self._model}, and no leaf explains how it followed "
                    f"version {self._newest}"
                )
            self._newest = number
        elif not late or self._before_recovery is None or number <= self._before_recovery:
            yield self._not_grown(number)
        self._before_recovery = None

    def _compare(self, index: int, version: _Version) -> Iterator[str]:
        digest, at = self._digests.setdefault(version.number, (version.digest, index))
        if digest != version.digest and version.number not in self._contradicted:
            self._contradicted.add(version.number)
            yield f"it gives version {version.number} of {self._model} different weights than leaf {at}"

    def _not_grown(self, number: int) -> str:
        return f"it makes version {number} of {self._model} after version {self._newest}: it was moved or invented"
