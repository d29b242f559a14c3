"""What the log holds in place of ids and references, SHA-256(salt || text), and the salts for it."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.domain.kinds import Names, RequestKind, Target, ends_of
from service.domain.records import Targets
from service.log.canonical import canonical

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


@dataclass(frozen=True)
class GivenSalts:
    """Salts that a caller has drawn itself, in hex."""

    #: By external id.
    nodes: Mapping[str, str]
    reference: str | None = None

    def __iter__(self) -> Iterator[str]:
        yield from self.nodes.values()
        if self.reference is not None:
            yield self.reference


def salted(
    subjects: Sequence[Target], reference: str | None, draw: Callable[[], str], given: GivenSalts | None = None
) -> Targets:
    """What a request names, with the salts under which the log commits to it: those given, else drawn with `draw`."""
    nodes = tuple(subject for subject in subjects if isinstance(subject, str))
    edges = tuple(subject for subject in subjects if not isinstance(subject, str))
    ends = nodes_of(subjects)
    if given is not None:
        return Targets(nodes, edges, {node: given.nodes[node] for node in ends}, given.reference)
    return Targets(nodes, edges, {node: draw() for node in ends}, None if reference is None else draw())


def nodes_of(subjects: Sequence[Target]) -> list[str]:
    """The nodes that each have a salt: those named, and the ends of edges, each once."""
    return list(dict.fromkeys(node for subject in subjects for node in ends_of(subject)))
