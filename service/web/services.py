"""Dependencies of the routes, created by the composition root and stored in the application's state."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from starlette.requests import Request

from service.access.key_memory import KeyMemory
from service.access.keyring import Keyring
from service.access.limits import NodeAllowance, RateLimits
from service.db.engine import Engine
from service.domain.lease_report import Check
from service.observability.exposition import Exposition
from service.observability.metrics import IntakeMetrics
from service.predictions.downloads import Downloads
from service.predictions.reader import Reader
from service.predictions.served_model import ModelInfo
from service.requests.deletable import Deletions
from service.requests.drill_runs import Drills
from service.settings import Settings


@dataclass(frozen=True)
class Services:
    """All dependencies of the routes."""

    settings: Settings
    #: Name of the served model, to which requests and tombstones belong.
    model: str
    engine: Engine
    keyring: Keyring
    keys: KeyMemory
    limits: RateLimits
    allowance: NodeAllowance
    reader: Reader
    downloads: Downloads
    model_info: Callable[[], Awaitable[ModelInfo]]
    deletions: Deletions
    drills: Drills
    #: Returns the results of the readiness checks.
    readiness: Callable[[], Awaitable[Sequence[Check]]]
    exposition: Exposition
    metrics: IntakeMetrics


def services_of(request: Request) -> Services:
    """Return the services of the application that handles `request`."""
    services: Services = request.app.state.services
    return services
