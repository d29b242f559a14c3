"""What a request names, and the salts that keep the log from telling it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from service.domain.kinds import Target, ends_of
from service.domain.records import Targets


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
