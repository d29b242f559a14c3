"""Commitments that the log holds in place of ids and references, SHA-256(salt || text), and their salts."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.domain.kinds import Names, RequestKind, Target, ends_of
from service.domain.records import Targets
from service.log.canonical import canonical

_BYTES = 32
#: Length of each salt of a request.
SALT_BYTES = 24
#: Member of an event that commits to its figures where they are hidden.
FIGURES_COMMITMENT = "figures_sha256"

#: The commitments in a leaf, in hex: one per node, or a pair per edge, whose ends are sorted by id.
CommitmentList = list[str] | list[list[str]]


@dataclass(frozen=True)
class Commitments:
    """The commitments of one request, kept in its row until its events are logged."""

    #: 32 bytes per node or 64 per edge, in the order of the request; None without salts.
    subjects: bytes | None
    #: 32 bytes; None without a reference.
    reference: bytes | None


def commitment(salt: str, text: str) -> bytes:
    """Return SHA-256(salt || text), 32 bytes; `salt` is hex, `text` is UTF-8. Raises ValueError for other salts."""
    return hashlib.sha256(bytes.fromhex(salt) + text.encode()).digest()


def opens(details: Mapping[str, Any], opening: Mapping[str, Any]) -> bool:
    """Return whether the `details` of an event commit to `opening`, a version's salt and figures."""
    figures = commitment(opening["salt"], canonical(opening["figures"]).decode())
    return bool(details.get(FIGURES_COMMITMENT) == figures.hex())


def commit(targets: Targets, reference: str | None) -> Commitments:
    """Return the commitments to a request's targets and reference, under the salts in `targets`."""
    salts = targets.node_salts
    subjects = None
    if salts is not None:
        named = (end for target in targets.named for end in ends_of(target))
        subjects = b"".join(commitment(salts[node], node) for node in named)
    if reference is None or targets.reference_salt is None:
        return Commitments(subjects, None)
    return Commitments(subjects, commitment(targets.reference_salt, reference))


def listed(kind: RequestKind, subjects: bytes) -> CommitmentList:
    """Return the commitments joined in `Commitments.subjects` as a leaf lists them."""
    digests = [subjects[start : start + _BYTES].hex() for start in range(0, len(subjects), _BYTES)]
    if kind.rules.names is Names.NODES:
        return digests
    return [digests[start : start + 2] for start in range(0, len(digests), 2)]


def holds(subjects: Sequence[object], *digests: bytes) -> bool:
    """Return whether a leaf's list has this node's commitment, or this edge's pair in either order."""
    if len(digests) == 1:
        return digests[0].hex() in subjects
    wanted = sorted(digest.hex() for digest in digests)
    return any(isinstance(pair, list) and sorted(pair) == wanted for pair in subjects)


@dataclass(frozen=True)
class GivenSalts:
    """Salts drawn by the caller, in hex."""

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
    """Return a request's targets with the salts of their commitments: those given, else drawn with `draw`."""
    nodes = tuple(subject for subject in subjects if isinstance(subject, str))
    edges = tuple(subject for subject in subjects if not isinstance(subject, str))
    ends = nodes_of(subjects)
    if given is not None:
        return Targets(nodes, edges, {node: given.nodes[node] for node in ends}, given.reference)
    return Targets(nodes, edges, {node: draw() for node in ends}, None if reference is None else draw())


def nodes_of(subjects: Sequence[Target]) -> list[str]:
    """Return the nodes that each get a salt: named nodes and the ends of edges, each once."""
    return list(dict.fromkeys(node for subject in subjects for node in ends_of(subject)))
