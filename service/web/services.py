"""Dependencies of the routes, created by the composition root and stored in the application's state."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass

from starlette.requests import Request

from service.access.key_memory import KeyMemory
from service.access.keyring import Keyring
from service.access.limits import NodeAllowance, RateLimits
from service.access.oidc.issuer import Issuer
from service.access.oidc.sign_on import SignOn
from service.access.oidc.token_callers import TokenCallers
from service.access.sessions import no_issuer
from service.db.engine import Engine
from service.domain.lease_report import Check
from service.domain.scopes import Scope
from service.observability.exposition import Exposition
from service.observability.metrics import IntakeMetrics
from service.predictions.downloads import Downloads
from service.predictions.reader import Reader
from service.predictions.served_model import ModelInfo
from service.requests.deletable import Deletions
from service.requests.drill_runs import Drills
from service.settings import Settings


@dataclass(frozen=True)
class OpenIdConnect:
    """Callers and users of an OpenID Connect issuer."""

    callers: TokenCallers
    #: None if users sign in to the dashboard with API keys only.
    sign_on: SignOn | None


def openid_connect(settings: Settings, engine: Engine, keyring: Keyring, keys: KeyMemory) -> OpenIdConnect | None:
    """Return the configured issuer, before any connection to it; None if the settings name none."""
    if settings.oidc_issuer is None:
        return None
    issuer, sign_on = Issuer(settings.oidc_issuer), None
    if settings.oidc_client_id is not None and settings.public_url is not None:
        dashboard = settings.public_url.rstrip("/") + "/dashboard"
        sign_on = SignOn(
            issuer,
            settings.oidc_client_id,
            settings.oidc_client_secret,
            settings.oidc_login_scope,
            callback_url=f"{dashboard}/sign-on/callback",
            signed_out_url=f"{dashboard}/login",
        )
    callers = TokenCallers(issuer, settings.grants, settings.oidc_audience, engine=engine, keyring=keyring, keys=keys)
    return OpenIdConnect(callers, sign_on)


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
    #: None unless an issuer is configured.
    openid: OpenIdConnect | None = None

    def still_granted(self, grant_ids: Collection[str]) -> frozenset[Scope]:
        """Return the scopes that these rows of LETHE_OIDC_GRANTS grant now."""
        return no_issuer(grant_ids) if self.openid is None else self.openid.callers.still_granted(grant_ids)


def services_of(request: Request) -> Services:
    """Return the services of the application that handles `request`."""
    services: Services = request.app.state.services
    return services
