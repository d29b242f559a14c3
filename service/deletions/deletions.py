"""What asking for deletions and finding them again works with."""

from dataclasses import dataclass

from service.access.limits import RateLimits
from service.db.engine import Engine
from service.deletions.intake.intake import Intake
from service.observability.metrics import IntakeMetrics
from service.publication.reader import Reader
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
