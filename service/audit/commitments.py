"""What the log holds in place of ids and references: SHA-256(salt || text).

Only the 202 answer and the request's encrypted targets have the salts, and the latter go when the request is
completed. Whoever kept the answer can show that a leaf is about a person; nobody can find out by trying ids. All salts
of requests are of one length: else salt || text would not say where the text begins, and one leaf would open for two
persons.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.audit.canonical import canonical
from service.domain.kinds import Names, RequestKind, ends_of
from service.domain.records import Targets

_BYTES = 32
#: Of each salt of a request.
SALT_BYTES = 24
#: The member of an event's content that commits to its figures, where they are not told.
FIGURES_COMMITMENT = "figures_sha256"

#: The commitments of a leaf, in hex: one per node, or a pair per edge, its ends in the order of their ids.
CommitmentList = list[str] | list[list[str]]


@dataclass(frozen=True)
class Commitments:
    """The commitments of one request, as its row keeps them until its events are logged."""

    #: 32 bytes for each node, or 64 for each edge, in the order of the request; None when there were no salts.
    subjects: bytes | None
    #: 32 bytes; None when the request has no reference.
    reference: bytes | None


def commitment(salt: str, text: str) -> bytes:
    """SHA-256(salt || text), 32 bytes; `salt` is hex, `text` is taken as UTF-8. Raises ValueError for another salt."""
    return hashlib.sha256(bytes.fromhex(salt) + text.encode()).digest()


def opens(details: Mapping[str, Any], opening: Mapping[str, Any]) -> bool:
    """Whether `opening`, a version's salt and figures, is what the `details` of an event commit to."""
    figures = commitment(opening["salt"], canonical(opening["figures"]).decode())
    return bool(details.get(FIGURES_COMMITMENT) == figures.hex())


def commit(targets: Targets, reference: str | None) -> Commitments:
    """The commitments to what a request names, under the salts that `targets` carry."""
    salts = targets.node_salts
    subjects = None
    if salts is not None:
        named = (end for target in targets.named for end in ends_of(target))
        subjects = b"".join(commitment(salts[node], node) for node in named)
    if reference is None or targets.reference_salt is None:
        return Commitments(subjects, None)
    return Commitments(subjects, commitment(targets.reference_salt, reference))


def listed(kind: RequestKind, subjects: bytes) -> CommitmentList:
    """The commitments that `Commitments.subjects` joins, as a leaf lists them."""
    digests = [subjects[start : start + _BYTES].hex() for start in range(0, len(subjects), _BYTES)]
    if kind.rules.names is Names.NODES:
        return digests
    return [digests[start : start + 2] for start in range(0, len(digests), 2)]


def holds(subjects: Sequence[object], *digests: bytes) -> bool:
    """Whether a leaf's list has this node's commitment, or the pair of this edge's, in either order."""
    if len(digests) == 1:
        return digests[0].hex() in subjects
    wanted = sorted(digest.hex() for digest in digests)
    return any(isinstance(pair, list) and sorted(pair) == wanted for pair in subjects)
