"""What a verification finds: its report, events that no request asked for, and whether weights follow from weights."""

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
    """One thing that is not as it was logged and signed."""

    #: The leaf concerned, counted from 0; None when it is no single one.
    index: int | None
    what: str

    def __str__(self) -> str:
        return self.what if self.index is None else f"leaf {self.index}: {self.what}"


@dataclass
class Report:
    """The outcome of one verification; nothing was found wrong when `findings` is empty."""

    findings: list[Fault] = field(default_factory=list)
    #: Leaves that were checked.
    leaves: int = 0
    #: Checkpoints whose signature is a trusted key's and good.
    signed: int = 0
    #: What the leaves tell that no request asked for: index, and a sentence.
    unrequested: list[tuple[int, str]] = field(default_factory=list)
    #: Of a receipt, as it is on paper; None for an export.
    fingerprint: str | None = None
    #: The newest trusted checkpoint.
    checkpoint: Checkpoint | None = None

    @property
    def is_good(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def find(self, index: int | None, what: str) -> None:
        """Add a finding."""
        self.findings.append(Fault(index, what))


#: Events after which the weights are others than a request before them left.
OF_THE_MODEL = (EventType.IMPORTED, EventType.RECOVERED, EventType.CERTIFIED)


@dataclass(frozen=True)
class UnrequestedEvent:
    """An event of no request, for people."""

    #: Of its leaf.
    index: int
    at: datetime
    what: str

    @classmethod
    def of(cls, leaf: Mapping[str, Any]) -> "UnrequestedEvent":
        """What a leaf tells."""
        return cls(leaf["index"], datetime.fromisoformat(leaf["time"]), in_words(leaf["type"], leaf["details"]))


def in_words(event_type: str, details: Mapping[str, Any]) -> str:
    """A sentence for an event of `UNREQUESTED`; of what is no such event, its type and content as they are."""
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
    """What is wrong with the bound of weights that the `details` of an event say are those of retraining.

    None where it is right, or they say no such thing: they commit to their figures, or tell of no such weights. Raises
    TypeError for what are no numbers.
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


#: Events with the figures of a batch; the first of a request is `applied`.
_OF_BATCH = (EventType.APPLIED, EventType.REPAIRED, EventType.NOT_REPAIRED, EventType.COMPLETED)
#: Members that tell a version and the digest of its weights.
_BEFORE = ("model_version_before", "weights_sha256_before")
_AFTER = ("model_version_after", "weights_sha256_after")
_REPAIRED = ("repair_version", "repair_weights_sha256")


class WeightsChains:
    """The versions of every model of a log, as the leaves taken so far tell them; it grows with their number."""

    def __init__(self) -> None:
        self._chains: dict[str, _Chain] = {}

    def take(self, index: int, leaf: Mapping[str, Any]) -> Iterator[str]:
        """What does not fit in the next leaf; nothing for one that tells of no weights."""
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
    """A version that an event speaks of."""

    number: int
    #: SHA-256 of its weights.
    digest: bytes

    @classmethod
    def read(cls, details: Mapping[str, Any], members: tuple[str, str]) -> "_Version | None":
        """None where the event does not speak of it; raises ValueError."""
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
    """What one event tells of versions."""

    event: EventType
    #: None for a recovery, which may go on from a version that this log knows nothing of.
    before: _Version | None
    after: _Version
    #: In which a repair ended.
    repaired: _Version | None

    @classmethod
    def read(cls, event: EventType, details: Mapping[str, Any]) -> "_Reported | None":
        """None for an event that tells of no version; raises ValueError."""
        after = _Version.read(details, _AFTER)
        if after is None:
            return None
        if event is EventType.RECOVERED:
            return cls(event, None, after, None)
        before = _Version.read(details, _BEFORE)
        # One with noise may pass over numbers that a restored log does not know.
        follows = before is not None and after.number == before.number + 1
        if not follows and (before is None or event is not EventType.CERTIFIED or after.number <= before.number):
            raise ValueError(f"it names version {after.number} but not the one before it")
        return cls(event, before, after, _Version.read(details, _REPAIRED))


class _Chain:
    """The versions of one model."""

    def __init__(self, model: str) -> None:
        self._model = model
        #: Digest of every version that was told of, and the leaf that told it first.
        self._digests: dict[int, tuple[bytes, int]] = {}
        #: The newest version; every model begins with 0.
        self._newest = 0
        #: The newest one before the recoveries that came last; a batch after it may still have to be applied.
        self._before_recovery: int | None = None
        self._contradicted: set[int] = set()

    def take(self, index: int, reported: _Reported) -> Iterator[str]:
        """What does not fit in the next event."""
        yield from self._place(reported)
        for version in (reported.before, reported.after, reported.repaired):
            if version is not None:
                yield from self._compare(index, version)

    def _place(self, reported: _Reported) -> Iterator[str]:
        """Whether the event comes where its version was made, or after it."""
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
        """Version `number` is made from `before`; `late` if its event may follow a recovery's."""
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
