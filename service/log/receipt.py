"""The receipt of one deletion: its content, and its verification with the log's public key alone. No I/O."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.domain.figures import RECEIPT
from service.domain.kinds import RequestKind
from service.domain.states import (
    NOTHING_LEFT,
    NOTHING_LEFT_UNKNOWN,
    EventType,
    Guarantee,
    guarantee_in_words,
    noise_in_a_sentence,
)
from service.errors import ConfigurationError
from service.log.canonical import Document, NotCanonical, canonical
from service.log.checkpoints import Checkpoint, NotVerified, VerifierKey, verify
from service.log.commitments import SALT_BYTES, commitment
from service.log.leaves import FORMAT as LEAF_FORMAT
from service.log.merkle import leaf_hash, root_by_inclusion
from service.log.verification import Report, in_words, overstated

#: First member of every receipt.
FORMAT = "lethe-receipt/1"
#: Only leaves are signed. An unknown member would look signed, so verifiers refuse it.
MEMBERS = frozenset({"format", "request_id", "summary", "entries", "since", "checkpoint", "public_keys"})
ENTRY_MEMBERS = frozenset({"leaf", "inclusion_proof"})
#: Events that end a request or apply it to the model.
_ENDS = frozenset({EventType.APPLIED, EventType.COMPLETED, EventType.FAILED})


@dataclass(frozen=True)
class Entry:
    """A leaf of the request, and its inclusion proof in the tree of the receipt's checkpoint."""

    leaf: Document
    proof: Sequence[bytes]


def receipt(
    entries: Sequence[Entry], checkpoint: str, keys: Sequence[VerifierKey], since: Sequence[Entry] = ()
) -> Document:
    """Return the receipt over the leaves of one request, in order; the proofs lead to the signed note `checkpoint`.

    `since` are the leaves, in order, of the model's events without a request after the request's first leaf.
    """
    leaves = [entry.leaf for entry in entries]
    return {
        "format": FORMAT,
        "request_id": leaves[0]["request_id"],
        "summary": summary(leaves, [entry.leaf for entry in since]),
        "entries": [_entry(entry) for entry in entries],
        "since": [_entry(entry) for entry in since],
        "checkpoint": checkpoint,
        "public_keys": [str(key) for key in keys],
    }


def _entry(entry: Entry) -> Document:
    return {"leaf": entry.leaf, "inclusion_proof": [digest.hex() for digest in entry.proof]}


def summary(leaves: Sequence[Document], since: Sequence[Document] = ()) -> Document:
    """Summarise the leaves of one request: what was requested, what was done, and events since.

    Raises KeyError or TypeError for documents that are not leaves of Lethe.
    """
    last = leaves[-1]["request"]
    times: dict[str, str] = {}
    figures: dict[str, Any] = {}
    for leaf in leaves:
        times[leaf["type"]] = leaf["time"]
        # A later event repeats earlier figures or lacks them: null adds nothing.
        figures |= {name: value for name, value in leaf["details"].items() if value is not None or name not in figures}
    # A repair may end before or after the erasure, and is not a status of a request.
    events = [EventType(leaf["type"]) for leaf in reversed(leaves)]
    done = next((event for event in events if event in _ENDS), events[0])
    guarantee = None if last["guarantee"] is None else Guarantee(last["guarantee"])
    meaning = None
    if guarantee:
        meaning = guarantee_in_words(guarantee, joins=RequestKind(last["kind"]).rules.joins)
    elif done is EventType.COMPLETED:
        meaning = NOTHING_LEFT if last["already_deleted_by"] else NOTHING_LEFT_UNKNOWN
    return {
        "model": last["model"],
        "kind": last["kind"],
        "count": last["count"],
        "received_at": last["received_at"],
        "applied_at": times.get(EventType.APPLIED),
        "repaired_at": times.get(EventType.REPAIRED),
        "not_repaired_at": times.get(EventType.NOT_REPAIRED),
        "completed_at": times.get(EventType.COMPLETED),
        "status": done.value,
        "what_was_done": last["explanation"],
        "already_deleted_by": last["already_deleted_by"],
        "guarantee": last["guarantee"],
        "guarantee_in_words": meaning,
        **({} if (noise := noise_in_a_sentence(figures)) is None else {"noise_in_words": noise}),
        "repair": last["repair"],
        "model_version_before": figures.get("model_version_before"),
        "model_version_after": figures.get("model_version_after"),
        "weights_sha256_before": figures.get("weights_sha256_before"),
        "weights_sha256_after": figures.get("weights_sha256_after"),
        "repair_version": figures.get("repair_version"),
        "repair_weights_sha256": figures.get("repair_weights_sha256"),
        "figures": {name: figures[name] for name in RECEIPT if figures.get(name) is not None},
        "since": [{"time": leaf["time"], "what": in_words(leaf["type"], leaf["details"])} for leaf in since],
        **(_failed(leaves, last) if done is EventType.FAILED else {}),
        **({"held": holds} if (holds := _holds(leaves)) else {}),
    }


def _holds(leaves: Sequence[Document]) -> list[Document]:
    """Return from when to when a request was on hold, and why."""
    holds: list[Document] = []
    for leaf in leaves:
        decided = leaf["details"]
        if leaf["type"] == EventType.HELD:
            holds.append({"from": decided["decided_at"], "until": None, "reason": decided["reason"]})
        elif leaf["type"] == EventType.RELEASED:
            holds[-1]["until"] = decided["decided_at"]
    return holds


def _failed(leaves: Sequence[Document], last: Document) -> Document:
    """Return when and why a request failed, and how it was handled since."""
    [failed_at] = [leaf["time"] for leaf in leaves if leaf["type"] == EventType.FAILED][-1:]
    failure = {"failed_at": failed_at, "failure": last["failure"], "handled_at": None, "handled_by": None, "note": None}
    for leaf in leaves:
        if leaf["type"] == EventType.HANDLED:
            by = leaf["details"].get("deleted_by") or [None]
            failure |= {"handled_at": leaf["time"], "handled_by": by[0], "note": leaf["details"].get("reason")}
    return failure


def fingerprint(leaves: Sequence[Document]) -> str:
    """Return the hash, in hex, of a request's newest leaf; it identifies the content of a receipt in the log."""
    return leaf_hash(canonical(leaves[-1])).hex()


def verify_receipt(
    document: Mapping[str, Any], keys: Collection[VerifierKey], against: Checkpoint | None = None
) -> Report:
    """Verify that a log signed by one of `keys` contains every leaf of a receipt, and that its summary matches them.

    `against` is a checkpoint from another source with the same size: a receipt proves nothing about other sizes. Raises
    ConfigurationError if the sizes differ.
    """
    report = Report()
    try:
        _verify(document, keys, report)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, NotCanonical):
        # Whoever wrote the file, it lacks the members of a receipt.
        report.find(None, "the file is not a receipt of Lethe, or was changed")
    checkpoint = report.checkpoint
    if against is not None and checkpoint is not None:
        if against.size != checkpoint.size:
            raise ConfigurationError(
                f"The receipt's checkpoint is of size {checkpoint.size}, the one to compare with of size "
                f"{against.size}. A receipt proves only its own size.",
                "Verify an export against it, or keep a checkpoint up to date with `./lethe audit watch`.",
            )
        if against != checkpoint:
            report.find(None, "the receipt and the checkpoint belong to different logs")
    return report


def _verify(document: Mapping[str, Any], keys: Collection[VerifierKey], report: Report) -> None:
    if document["format"] != FORMAT:
        report.find(None, f"the receipt does not have the format {FORMAT}")
        return
    for name in sorted(document.keys() - MEMBERS):
        report.find(None, f"the receipt has an unknown member: {name!r}")
    entries: Sequence[Mapping[str, Any]] = document["entries"]
    leaves: list[Document] = [entry["leaf"] for entry in entries]
    try:
        report.checkpoint = verify(document["checkpoint"], keys)
    except NotVerified as error:
        report.find(None, error.detail)
        return
    report.signed = 1
    if not leaves:
        report.find(None, "the receipt has no leaf")
        return
    for entry in entries:
        _verify_entry(entry, document["request_id"], report.checkpoint, report)
    report.fingerprint = fingerprint(leaves)
    since: list[Document] = [entry["leaf"] for entry in document["since"]]
    for entry in document["since"]:
        _verify_entry(entry, None, report.checkpoint, report)
    for chain in (leaves, [leaves[0], *since]):
        places = [leaf["index"] for leaf in chain]
        if places != sorted(set(places)):
            report.find(None, "the leaves are not in their order")
    if any(leaf["details"]["model"] != leaves[0]["request"]["model"] for leaf in since):
        report.find(None, "it is about another model")
    report.unrequested = [(leaf["index"], in_words(leaf["type"], leaf["details"])) for leaf in since]
    # Compare as JSON: in Python, true equals 1.
    if canonical(document["summary"]) != canonical(summary(leaves, since)):
        report.find(None, "the summary contradicts the leaves")


def _verify_entry(entry: Mapping[str, Any], request_id: str | None, checkpoint: Checkpoint, report: Report) -> None:
    leaf = entry["leaf"]
    index = leaf["index"]
    for name in sorted(entry.keys() - ENTRY_MEMBERS):
        report.find(None, f"an entry has an unknown member: {name!r}")
    if type(index) is not int:
        report.find(None, "a leaf has no index")
        return
    report.leaves += 1
    if leaf["format"] != LEAF_FORMAT:
        report.find(index, f"it does not have the format {LEAF_FORMAT}")
    if leaf["request_id"] != request_id:
        report.find(index, "it is about another request")
    try:
        digest = leaf_hash(canonical(leaf))
    except NotCanonical:
        report.find(index, "it cannot have been logged")
        return
    if (wrong := overstated(leaf["details"])) is not None:
        report.find(index, wrong)
    proof = [bytes.fromhex(step) for step in entry["inclusion_proof"]]
    if root_by_inclusion(index, checkpoint.size, digest, proof) != checkpoint.root:
        report.find(index, "it is not in the signed log: the leaf or its proof was changed")


def linked(
    document: Mapping[str, Any], salts: Mapping[str, Any], reference: str | None
) -> tuple[dict[str, bool], bool | None]:
    """Return whether a receipt is about each id, and about the reference, using the `salts` of the 202 response.

    Maps each id of `salts` to whether a leaf commits to it. The second value says the same of the reference; None if it
    is None. This does not prove the receipt genuine. Raises ValueError for invalid salts or receipts.
    """
    try:
        leaves: list[Document] = [entry["leaf"] for entry in document["entries"]]
        subjects = {digest for leaf in leaves for subject in leaf["subjects"] or () for digest in _flat(subject)}
        nodes = {node: _committed(salt, node) in subjects for node, salt in salts["nodes"].items()}
        if reference is None:
            return nodes, None
        wanted = _committed(salts["reference"], reference)
        return nodes, any(leaf["reference"] == wanted for leaf in leaves)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("these are not the salts of a 202 answer") from error


def _committed(salt: str, text: str) -> str:
    """Return the commitment in hex. Raises ValueError for a wrong salt length, which could absorb part of an id."""
    if len(bytes.fromhex(salt)) != SALT_BYTES:
        raise ValueError(f"a salt has {SALT_BYTES} bytes")
    return commitment(salt, text).hex()


def _flat(subject: str | Sequence[str]) -> Sequence[str]:
    return [subject] if isinstance(subject, str) else subject
