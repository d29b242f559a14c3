"""What asking for deletions and finding them again works with."""

from collections.abc import Sequence
from dataclasses import dataclass

from service.access.limits import RateLimits
from service.db.engine import Engine
from service.deletions.intake.intake import Intake
from service.observability.metrics import IntakeMetrics
from service.offload import offload
from service.publication.reader import Found, Reader
from service.tombstones.lookup import TombstoneLookup
from service.vault.keyring import Keyring


@dataclass(frozen=True)
class Deletions:
    """Made once by the composition root."""

    #: Name of the model that is served; requests and tombstones belong to it.
    model: str
    engine: Engine
    reader: Reader
    tombstones: TombstoneLookup
    keyring: Keyring
    intake: Intake
    limits: RateLimits
    metrics: IntakeMetrics
    #: Most targets of one request, and most nodes of one search.
    most_targets: int

    async def look_up(self, nodes: Sequence[str], edges: Sequence[tuple[str, str]]) -> Found | None:
        """What the published version has of these; None where none can be read."""
        return await offload(len(nodes), lambda: self.reader.look_up(nodes, edges))
