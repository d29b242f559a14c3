"""The receipt of one deletion: its leaves, the proofs that the signed log has them, and what they say. No I/O.

Everything a receipt claims is in its leaves; the summary repeats it for people, and a verifier derives it anew.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from service.audit.canonical import Document, canonical
from service.audit.checkpoint import VerifierKey
from service.audit.merkle import leaf_hash
from service.audit.unrequested import in_words
from service.domain.figures import RECEIPT
from service.domain.guarantees import GUARANTEES, NOTHING_LEFT, NOTHING_LEFT_UNKNOWN, told_of_noise
from service.domain.states import EventType, Guarantee

#: The first member of every receipt.
FORMAT = "lethe-receipt/1"
#: Only leaves are signed. An unknown member would look signed: verifiers refuse it.
MEMBERS = frozenset({"format", "request_id", "summary", "entries", "since", "checkpoint", "public_keys"})
ENTRY_MEMBERS = frozenset({"leaf", "inclusion_proof"})
#: Events that end a request, or its way through the model.
_ENDS = frozenset({EventType.APPLIED, EventType.COMPLETED, EventType.FAILED})


@dataclass(frozen=True)
class Entry:
    """A leaf of the request, and its inclusion proof in the tree of the receipt's checkpoint."""

    leaf: Document
    proof: Sequence[bytes]


def receipt(
    entries: Sequence[Entry], checkpoint: str, keys: Sequence[VerifierKey], since: Sequence[Entry] = ()
) -> Document:
    """The receipt over the leaves of one request, in order; `checkpoint` is the signed note that the proofs lead to.

    `since` are the leaves, in order, of what befell the request's model after its first one and no request asked for.
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
    """What the leaves of one request say together: what was asked, what was done, what holds since.

    Raises KeyError or TypeError for what are no leaves of Lethe.
    """
    last = leaves[-1]["request"]
    times: dict[str, str] = {}
    figures: dict[str, Any] = {}
    for leaf in leaves:
        times[leaf["type"]] = leaf["time"]
        # A later event repeats earlier figures, or has none: null says nothing new.
        figures |= {name: value for name, value in leaf["details"].items() if value is not None or name not in figures}
    # A repair may end before or after the erasure, and is no status of a request.
    told = [EventType(leaf["type"]) for leaf in reversed(leaves)]
    done = next((event for event in told if event in _ENDS), told[0])
    guarantee = None if last["guarantee"] is None else Guarantee(last["guarantee"])
    meaning = None
    if guarantee:
        meaning = GUARANTEES[guarantee]
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
        **({} if (noise := told_of_noise(figures)) is None else {"noise_in_words": noise}),
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
    }


def _failed(leaves: Sequence[Document], last: Document) -> Document:
    """When and why a request failed, and what has become of it since."""
    [failed_at] = [leaf["time"] for leaf in leaves if leaf["type"] == EventType.FAILED][-1:]
    told = {"failed_at": failed_at, "failure": last["failure"], "handled_at": None, "handled_by": None, "note": None}
    for leaf in leaves:
        if leaf["type"] == EventType.HANDLED:
            by = leaf["details"].get("deleted_by") or [None]
            told |= {"handled_at": leaf["time"], "handled_by": by[0], "note": leaf["details"].get("reason")}
    return told


def fingerprint(leaves: Sequence[Document]) -> str:
    """The hash, in hex, by which the log knows the newest leaf of a request, and so all that a receipt says of it."""
    return leaf_hash(canonical(leaves[-1])).hex()
