"""The settings of the service: each is a command-line flag and an environment variable `LETHE_<NAME>`."""

import os
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    SecretStr,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)
from pydantic_settings import SettingsConfigDict

from projector.forgetting.status import LARGEST_TOLERANCE, SMALLEST_TOLERANCE, TOLERANCE
from service.db import postgres_urls
from service.errors import ConfigurationError
from service.ledger.places import require_readable
from service.oidc_settings import OidcSettings
from service.queue import redis_urls
from service.setting_types import promise_text, readable, scheme
from service.text import fault_of, in_words

ENV_PREFIX = "LETHE_"
#: Variables with this prefix that are not settings, with what reads them.
OTHER_VARIABLES: Mapping[str, str] = {
    "LETHE_URL": "commands that talk to a running Lethe",
    "LETHE_KEY": "commands that talk to a running Lethe",
    "LETHE_API_DATABASE_PASSWORD": "docker-compose.yml",
    "LETHE_UNLEARNER_DATABASE_PASSWORD": "docker-compose.yml",
    "LETHE_METRICS_KEY": "docker-compose.yml",
    "LETHE_DATA": "docker-compose.yml",
    "LETHE_TEST_SEED": "the tests",
    "LETHE_CHECKOUT": "scripts that test a checkout from outside",
}
#: Variables that Kubernetes sets in every container for a Service whose name begins with `lethe`.
_SERVICE_LINK = re.compile(
    r"LETHE_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)=.*"
    r"|LETHE_\w+_PORT=(tcp|udp|sctp)://.*"
)


DatabaseUrl = Annotated[str | None, scheme(*postgres_urls.SCHEMES), readable(postgres_urls.read)]


class Settings(OidcSettings):
    """The settings of one process. `load_settings` reads them once; callers pass them on."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        populate_by_name=True,
        protected_namespaces=(),
    )

    home: Path = Field(Path("var"), description="Folder for Lethe's data: private servers, keys, secrets, models.")
    database_url: DatabaseUrl = Field(
        None,
        validation_alias="DATABASE_URL",
        repr=False,
        description="Postgres, as postgresql://user:password@host/database with the login that owns the tables; unset: "
        "a private server.",
    )
    api_database_url: DatabaseUrl = Field(
        None,
        repr=False,
        description="The same Postgres with the login of the answering processes, a member of lethe_api; unset: "
        "DATABASE_URL.",
    )
    unlearner_database_url: DatabaseUrl = Field(
        None,
        repr=False,
        description="The same Postgres with the unlearner's login, a member of lethe_unlearner; unset: DATABASE_URL.",
    )
    redis_url: Annotated[str | None, scheme(*redis_urls.SCHEMES), readable(redis_urls.read)] = Field(
        None,
        validation_alias="REDIS_URL",
        repr=False,
        description="Redis or Valkey, as redis://:password@host:port/0; unset: a private server.",
    )

    host: str = Field("127.0.0.1", min_length=1, description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65_535, description="TCP port to listen on; 0: any free port.")
    trusted_proxies: str | None = Field(
        None,
        description="Proxies whose X-Forwarded-For is trusted: addresses or networks, separated by commas.",
    )
    api_workers: int | None = Field(
        None, ge=1, le=64, description="Number of answering processes; unset: 1 on up to 2 cores, else up to 4."
    )
    workers: int = Field(1, ge=1, le=64, description="Number of unlearning processes: the unlearner and its workers.")
    workers_address: str = Field(
        "127.0.0.1",
        min_length=1,
        description="Address on which the unlearner listens for its workers.",
    )
    workers_port: int = Field(
        8002, ge=1, le=65_535, description="TCP port at which the unlearner listens for its workers."
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="Device of the model; auto: cuda if available.")

    dataset: str = Field(
        "cora", min_length=1, description="Dataset that the first `serve` trains on if there is no model."
    )
    model: Path | None = Field(None, description="Folder of the model to serve; unset: LETHE_HOME/model.")
    share: Path | None = Field(
        None,
        description="Folder of the files that answering processes predict from; unset: in memory, else in LETHE_HOME.",
    )
    ledger: Annotated[str | None, readable(require_readable)] = Field(
        None,
        description="Erasure ledger outside of home and database: a path, file:///path or s3://bucket/prefix. After a "
        "restore of everything, `./lethe recover --ledger` deletes again what it records. Unset: none.",
    )
    data_dir: Path | None = Field(None, description="Folder searched first for datasets.")
    repair: Literal["always", "never"] = Field(
        "always", description="Whether a deletion is followed by a repair, to the weights of retraining."
    )
    repair_budget: float = Field(
        2.0,
        ge=0.0,
        le=3600.0,
        description="Longest repair of a batch before it is served (seconds); the rest of the repair follows in idle "
        "time. Meanwhile, further batches are served immediately.",
    )
    repair_tolerance: float = Field(
        TOLERANCE,
        ge=SMALLEST_TOLERANCE,
        le=LARGEST_TOLERANCE,
        description="Largest distance to retraining, relative to the weights, that counts as `retrained`.",
    )
    certify: Annotated[str | None, AfterValidator(promise_text)] = Field(
        None,
        description="EPSILON,DELTA: publish weights with noise, so that unlearned and retrained weights cannot be told "
        "apart beyond this privacy level; see docs/guarantees.md. Unset: no noise.",
    )
    certify_publications: int = Field(
        10_000, ge=1, le=10**9, description="Number of versions after a deletion for which `certify` holds in total."
    )
    factor_age: float = Field(
        60.0,
        ge=0.0,
        le=3600.0,
        description="How long a factor of the loss's curvature from before a deletion may stay in memory to speed up "
        "repairs (seconds); 0: it is dropped with the deletion.",
    )

    max_batch_nodes: int = Field(4096, ge=1, le=1_000_000, description="Maximum nodes in one update of the model.")
    max_wait_ms: int = Field(20, ge=0, le=60_000, description="Longest wait for a batch to fill (milliseconds).")
    max_queued_nodes: int = Field(
        100_000,
        ge=1,
        description="Maximum queued nodes per API key; four times as many for all keys together. Above it, requests "
        "get 429.",
    )
    max_nodes_per_request: int = Field(
        10_000, ge=1, le=100_000, description="Maximum number of nodes and edges in one request."
    )
    max_body_bytes: int = Field(1_048_576, ge=1_024, le=1 << 30, description="Largest request body (bytes).")

    prediction_decimals: int = Field(
        2,
        ge=0,
        le=15,
        description="Decimals of probabilities for keys without the scope predictions:exact.",
    )
    max_predicted_nodes: int = Field(
        0,
        ge=0,
        description="Maximum nodes that one API key may request predictions of, per model version; 0: no limit.",
    )

    deadline_days: float = Field(
        30.0,
        ge=0.001,
        le=3650.0,
        description="Days until a new request is due. Earlier requests keep their deadline.",
    )
    keep_failed_days: float = Field(
        90.0,
        gt=0.0,
        le=3650.0,
        description="Days that a failed, unhandled request keeps its encrypted list of ids and can be retried.",
    )
    organisation: str | None = Field(
        None,
        min_length=1,
        max_length=200,
        description="Organisation responsible for deletions, as named on receipts and reports.",
    )
    public_url: Annotated[str | None, scheme("https", "http")] = Field(
        None,
        description="Public address of the dashboard, such as https://lethe.example.org; used by the QR code on "
        "receipts and reports.",
    )
    webhook_networks: str | None = Field(
        None,
        description="Private webhook receivers that are allowed, also without TLS: addresses or networks, separated by "
        "commas; unset: public addresses only.",
    )

    lease_ttl_s: float = Field(10.0, ge=1.0, le=600.0, description="Lifetime of the unlearner's lease (seconds).")
    readiness_timeout_s: float = Field(2.0, gt=0.0, le=60.0, description="Timeout of a readiness check (seconds).")
    shutdown_grace_s: float = Field(
        10.0,
        ge=0.0,
        le=600.0,
        description="Time to finish at shutdown (seconds): up to 2 for open HTTP requests, the rest for the batch.",
    )

    admin_key: SecretStr | None = Field(None, description="First API key, with all scopes; unset: generated.")
    log_format: Literal["console", "json"] = Field("console", description="Format of log lines.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Lowest log level.")

    @field_validator("*")
    @classmethod
    def _shown(cls, value: Any) -> Any:
        """Refuse text with invisible characters."""
        if isinstance(value, str) and (fault := fault_of(value)):
            raise ValueError(fault)
        return value

    @field_validator("home", "model", "share", "data_dir")
    @classmethod
    def _absolute(cls, path: Path | None) -> Path | None:
        """Resolve relative paths now, so that a later change of directory has no effect."""
        return None if path is None else Path(os.path.abspath(path.expanduser()))  # noqa: PTH100 - keeps symlinks

    @field_validator("repair_tolerance", mode="wrap")
    @classmethod
    def _serialisable(cls, value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
        """Explain the smallest and the largest tolerance in the error."""
        try:
            return validate(value)
        except ValidationError:
            raise ValueError(
                f"must be between {SMALLEST_TOLERANCE:g} (rounding prevents smaller bounds) and {LARGEST_TOLERANCE:g} "
                "(weights farther away are not those of retraining)"
            ) from None

    @field_validator("admin_key")
    @classmethod
    def _long_enough(cls, key: SecretStr | None) -> SecretStr | None:
        """Refuse a key that is easy to guess."""
        if key is not None and not 8 <= len(key.get_secret_value()) <= 256:
            raise ValueError("must have 8 to 256 characters")
        return key

    @field_validator("workers_address")
    @classmethod
    def _of_one_interface(cls, address: str) -> str:
        """Refuse wildcard addresses, because worker traffic must stay on one network."""
        if address in ("0.0.0.0", "::"):
            raise ValueError("must be one address of the unlearner's host, on the network of the workers")
        return address

    @field_validator("trusted_proxies", "webhook_networks")
    @classmethod
    def _networks(cls, text: str | None) -> str | None:
        """Refuse anything that is not an address or a network."""
        _networks_in(text)
        return text

    @property
    def proxies(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """Return the networks of `trusted_proxies`."""
        return _networks_in(self.trusted_proxies)

    @model_validator(mode="after")
    def _repaired_where_certified(self) -> Self:
        """Refuse noise without repair, because the noise is calibrated to a proven distance from retraining."""
        if self.certify is not None and self.repair == "never":
            raise ValueError("certify requires repair=always: its noise is calibrated to the proven distance")
        return self

    @model_validator(mode="after")
    def _users_come_back(self) -> Self:
        """Refuse a client of the issuer without an address to which the issuer sends users back."""
        if self.oidc_client_id is not None and self.public_url is None:
            raise ValueError("oidc_client_id requires public_url, to which the issuer sends users back")
        return self

    @property
    def certified(self) -> tuple[float, float] | None:
        """Return epsilon and delta of `certify`; None if unset."""
        if self.certify is None:
            return None
        epsilon, delta = map(float, self.certify.split(","))
        return epsilon, delta

    @property
    def private_receivers(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """Return the networks of `webhook_networks`."""
        return _networks_in(self.webhook_networks)

    @property
    def model_dir(self) -> Path:
        """Return the folder of the served model."""
        return self.model or self.home / "model"

    def as_handover(self) -> dict[str, Any]:
        """Return all values as JSON, secrets included; only for passing to a child process through a descriptor."""
        secrets = {name: getattr(self, name) for name in ("admin_key", "oidc_client_secret")}
        return self.model_dump(mode="json") | {
            name: None if secret is None else secret.get_secret_value() for name, secret in secrets.items()
        }

    @property
    def servers(self) -> tuple[str, str]:
        """Return the URLs of Postgres (owner's login) and Redis. Raises ConfigurationError when one is unset."""
        if self.database_url is None or self.redis_url is None:
            raise ConfigurationError("No Postgres or Redis is configured.", "Set DATABASE_URL and REDIS_URL.")
        return self.database_url, self.redis_url


def _networks_in(text: str | None) -> tuple[IPv4Network | IPv6Network, ...]:
    return tuple(ip_network(one.strip()) for one in (text or "").split(",") if one.strip())


def setting_names() -> list[str]:
    """Return the names of all settings, in the order in which users read them."""
    return [
        *(name for name in Settings.model_fields if name not in OidcSettings.model_fields),
        *OidcSettings.model_fields,
    ]


def variable_name(field: str) -> str:
    """Return the environment variable of a `Settings` field."""
    alias = Settings.model_fields[field].validation_alias
    return alias if isinstance(alias, str) else ENV_PREFIX + field.upper()


def require_known_variables(environment: Mapping[str, str]) -> None:
    """Refuse unknown `LETHE_…` variables, such as misspelled settings. An empty variable counts as unset.

    Raises ConfigurationError with one line per variable: its name and the nearest known name, never its value.
    """
    known = {variable_name(field).removeprefix(ENV_PREFIX): variable_name(field) for field in Settings.model_fields}
    known |= {name.removeprefix(ENV_PREFIX): name for name in OTHER_VARIABLES}
    lines = []
    for name, value in sorted(environment.items()):
        upper = name.upper()
        if not value or not upper.startswith(ENV_PREFIX) or upper in known.values():
            continue
        if _SERVICE_LINK.fullmatch(f"{upper}={value}"):
            continue
        near = get_close_matches(upper.removeprefix(ENV_PREFIX), known, 1)
        lines.append(f"{name}: unknown variable" + (f"; did you mean {known[near[0]]}?" if near else "."))
    if lines:
        raise ConfigurationError("\n".join(lines), "Correct or unset it; docs/settings.md lists all variables.")


def environment_without_settings() -> dict[str, str]:
    """Return this process's environment without settings, for a child that receives its settings another way."""
    ours = {variable_name(field) for field in Settings.model_fields}
    return {name: value for name, value in os.environ.items() if name.upper() not in ours}


def load_settings(**flags: Any) -> Settings:
    """Return the settings from the environment, overridden by the flags that are not None.

    Raises ConfigurationError with one line per bad value: the variable's name and its fault.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        return Settings(**given)
    except ValidationError as error:
        lines = list(_explain(error, given))
    raise ConfigurationError("\n".join(lines), "Correct the variable or flag and start again.") from None


def _explain(error: ValidationError, flags: Iterable[str]) -> Iterable[str]:
    fields = {variable_name(name): name for name in Settings.model_fields} | {n: n for n in Settings.model_fields}
    for problem in error.errors(include_url=False):
        if not problem["loc"]:
            # A combination of settings; the message names them.
            yield f"{in_words(problem)}."
            continue
        field = fields.get(str(problem["loc"][0]), str(problem["loc"][0]))
        if field not in Settings.model_fields:
            yield f"{field}: unknown setting."
            continue
        name = variable_name(field)
        source = f"--{field.replace('_', '-')} ({name})" if field in flags else name
        message = in_words(problem)
        secret = field in ("admin_key", "oidc_client_secret", "ledger") or field.endswith("_url")
        shown = "" if secret else f", not {str(problem['input'])!r}"
        yield f"{source}: {message}{shown}."
