"""What the log tells that no request asked for, in words: imports, recoveries, keys. No I/O.

Without it, weights would change between two deletions for no reason that the log knows of.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from service.domain.states import EventType

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
            f"a newly trained model took the place of {said.get('model')}: version {said.get('model_version_before')} "
            f"to {said.get('model_version_after')}; earlier requests had deleted, and it had again and lost before it "
            f"was served: {_counts(said, 'excluded_')}"
        )
    if event_type == EventType.RECOVERED:
        database = said.get("database_before") or "without any"
        return (
            f"`lethe recover` went on with version {said.get('model_version_after')} of {said.get('model')} from what "
            f"there was, a store (version {said.get('store_before')}) and a database (version {database}); deleted "
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
