"""The settings of an OpenID Connect issuer: all in one place, and refused unless they fit together."""

from typing import Annotated, Self

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings

from service.domain.addresses import is_private
from service.domain.grants import Grant, parse_grants
from service.setting_types import readable


class OidcSettings(BaseSettings):
    """What Lethe knows of an issuer; part of `Settings`."""

    oidc_issuer: str | None = Field(
        None,
        description="OpenID Connect issuer whose tokens are accepted beside API keys, exactly as in their `iss`; "
        "unset: API keys only. See docs/sign-on.md.",
    )
    oidc_audience: str | None = Field(
        None, min_length=1, description="Audience (`aud`) of access tokens for Lethe; unset: none are accepted."
    )
    oidc_grants: Annotated[str | None, readable(parse_grants)] = Field(
        None,
        description="JSON table of the scopes that a token has: claim, value, scopes, such as "
        '{"groups": {"privacy-team": ["audit:read"]}}.',
    )
    oidc_client_id: str | None = Field(
        None,
        min_length=1,
        description="Client at the issuer with which users sign in to the dashboard; requires LETHE_PUBLIC_URL. Unset: "
        "the dashboard takes API keys only.",
    )
    oidc_client_secret: SecretStr | None = Field(
        None, description="Secret of that client; unset: a public client, protected by PKCE alone."
    )
    oidc_login_scope: str = Field(
        "openid",
        pattern=r"(^| )openid( |$)",
        description="Scopes to request at sign-in, separated by spaces; some issuers send groups only with one of "
        "their own.",
    )

    @model_validator(mode="after")
    def _oidc_is_whole(self) -> Self:
        """Refuse an OpenID Connect configuration that lacks a part, or would accept the wrong tokens."""
        if self.oidc_issuer is None:
            for name in ("oidc_audience", "oidc_grants", "oidc_client_id", "oidc_client_secret"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} requires oidc_issuer")
            return self
        if self.oidc_grants is None:
            raise ValueError("oidc_issuer requires oidc_grants: without it, no token grants a scope")
        if self.oidc_audience is None and self.oidc_client_id is None:
            raise ValueError("oidc_issuer requires oidc_audience, oidc_client_id, or both")
        if self.oidc_audience == self.oidc_client_id:
            raise ValueError("oidc_audience and oidc_client_id must differ: the dashboard's tokens are not for the API")
        if self.oidc_client_secret is not None and self.oidc_client_id is None:
            raise ValueError("oidc_client_secret requires oidc_client_id")
        return self

    @field_validator("oidc_issuer")
    @classmethod
    def _cannot_be_read_on_the_way(cls, url: str | None) -> str | None:
        """Refuse an issuer whose keys others on the network could replace."""
        if url is not None and not is_private(url):
            raise ValueError("must be an https address; http is for issuers on this machine")
        return url

    @property
    def grants(self) -> tuple[Grant, ...]:
        """Return the rows of `oidc_grants`."""
        return () if self.oidc_grants is None else parse_grants(self.oidc_grants)
