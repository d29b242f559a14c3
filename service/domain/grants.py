"""Which scopes a token of an OpenID Connect issuer grants: one table, from values of its claims to Lethe's scopes."""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from service.domain.scopes import Scope

#: Claims that hold several values in one text, separated by spaces (RFC 8693, and Microsoft Entra's name for it).
_SPACED = frozenset({"scope", "scp"})
_FORM = 'must be a JSON object such as {"groups": {"privacy-team": ["audit:read", "deletions:write"]}}'


@dataclass(frozen=True)
class Grant:
    """One row of the table: a token whose `claim` is or contains `value` has these scopes."""

    claim: str
    value: str
    scopes: frozenset[Scope]

    def id(self, issuer: str) -> str:
        """Return a short id of this row for tokens of `issuer`; it stays when the row's scopes change."""
        return hashlib.sha256(json.dumps([issuer, self.claim, self.value]).encode()).hexdigest()[:12]


def parse_grants(text: str) -> tuple[Grant, ...]:
    """Return the rows of a table in JSON: claim -> value -> list of scopes. Raises ValueError."""
    try:
        table = json.loads(text)
    except ValueError:
        raise ValueError(_FORM) from None
    if not isinstance(table, dict) or not table:
        raise ValueError(_FORM)
    return tuple(
        Grant(claim, value, _scopes(claim, value, names))
        for claim, values in table.items()
        for value, names in _members(values)
    )


def matching(grants: Collection[Grant], claims: Mapping[str, Any]) -> tuple[Grant, ...]:
    """Return the rows that the claims of a verified token match."""
    return tuple(grant for grant in grants if grant.value in _values(claims, grant.claim))


def scopes_of(grants: Collection[Grant]) -> frozenset[Scope]:
    """Return all scopes of these rows."""
    return frozenset(scope for grant in grants for scope in grant.scopes)


def _members(values: object) -> Iterator[tuple[str, object]]:
    if not isinstance(values, dict) or not values:
        raise ValueError(_FORM)
    yield from values.items()


def _scopes(claim: str, value: str, names: object) -> frozenset[Scope]:
    if not isinstance(names, list) or not names:
        raise ValueError(_FORM)
    unknown = [name for name in names if name not in [*Scope]]
    if unknown:
        raise ValueError(f"names the unknown scope {unknown[0]!r} for {claim} {value!r}; scopes: {', '.join(Scope)}")
    return frozenset(map(Scope, names))


def _values(claims: Mapping[str, Any], name: str) -> frozenset[str]:
    """Return the texts in a claim. A name with dots also finds a member of an object, such as `realm_access.roles`."""
    found: object = claims.get(name)
    if found is None and "." in name:
        found = claims
        for part in name.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
    if name == "email" and claims.get("email_verified") is not True:
        # At some issuers, users may type in any address.
        return frozenset()
    if isinstance(found, str):
        return frozenset(found.split() if name in _SPACED else [found])
    return frozenset(one for one in found if isinstance(one, str)) if isinstance(found, list) else frozenset()
