"""Verifying a receipt offline, with the log's public key alone. No I/O."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from service.audit.canonical import Document, NotCanonical, canonical
from service.audit.checkpoint import Checkpoint, NotVerified, VerifierKey, verify
from service.audit.commitments import SALT_BYTES, commitment
from service.audit.leaf import FORMAT as LEAF_FORMAT
from service.audit.merkle import leaf_hash, root_by_inclusion
from service.audit.receipt import ENTRY_MEMBERS, FORMAT, MEMBERS, fingerprint, summary
from service.audit.report import Report
from service.audit.tolerance import overstated
from service.audit.unrequested import in_words
from service.errors import ConfigurationError


def verify_receipt(
    document: Mapping[str, Any], keys: Collection[VerifierKey], against: Checkpoint | None = None
) -> Report:
    """Whether every leaf of a receipt is in a log that one of `keys` signed, and the receipt says what they say.

    `against` is a checkpoint known from elsewhere, of the same size: a receipt has no proof about any other. Raises
    ConfigurationError for one of another size.
    """
    report = Report()
    try:
        _verify(document, keys, report)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, NotCanonical):
        # Whoever wrote it, it does not have the members of a receipt.
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
    # As JSON: to Python, true is 1.
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
    """Which ids, and whether the reference, a receipt is about, by the `salts` member of the 202 answer.

    Returns each id of `salts` with whether a leaf commits to it, and the same of `reference`, None when it is not
    asked for. Says nothing of whether the receipt is genuine. Raises ValueError for what are no salts or receipt.
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
    """The commitment in hex. Raises ValueError for a salt of another length, which another id could be a part of."""
    if len(bytes.fromhex(salt)) != SALT_BYTES:
        raise ValueError(f"a salt has {SALT_BYTES} bytes")
    return commitment(salt, text).hex()


def _flat(subject: str | Sequence[str]) -> Sequence[str]:
    return [subject] if isinstance(subject, str) else subject
