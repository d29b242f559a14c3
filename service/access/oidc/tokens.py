"""Verifies access and ID tokens: signed JSON Web Tokens of one issuer (RFC 9068, OpenID Connect Core 1.0)."""

import hmac
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from joserfc import jws, jwt
from joserfc.errors import ExpiredTokenError, InvalidClaimError, JoseError, MissingClaimError
from joserfc.jws import JWSRegistry

from service.access.oidc.issuer import Issuer
from service.errors import Unauthenticated

#: Asymmetric only: under a shared secret or none, everybody could make tokens.
ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA", "Ed25519"),
)
#: Difference allowed between the issuer's clock and ours (seconds).
SKEW_S = 60
#: Types of tokens, in lower case and without `application/`. "" stands for none: many issuers give none.
_ACCESS_TYPES, _ID_TYPES = frozenset({"at+jwt", "jwt", ""}), frozenset({"jwt", ""})
#: Claims that only ID tokens have.
_OF_ID_TOKENS = frozenset({"at_hash", "c_hash"})
#: Longer tokens are refused unread.
_LONGEST = 16_384


class _Headers(JWSRegistry):
    """Allows header fields that only inform, and certificates, which are ignored."""

    max_header_length = 8_192


_HEADERS = _Headers(algorithms=ALGORITHMS, strict_check_header=False)
#: What joserfc raises for malformed tokens; RecursionError for deeply nested JSON.
_MALFORMED = (JoseError, ValueError, TypeError, AttributeError, KeyError, RecursionError)


@dataclass(frozen=True)
class Verified:
    """A token that the issuer made for this service and that is valid now."""

    subject: str
    expires_at: datetime
    claims: Mapping[str, Any]


def looks_like_token(text: str) -> bool:
    """Return whether `text` has the form of a signed JSON Web Token; no key that Lethe makes has."""
    return text.count(".") == 2 and text.startswith("eyJ")


async def verify(text: str, issuer: Issuer, audience: str) -> Verified:
    """Check an access token's type, signature, issuer, audience and times.

    Raises:
        Unauthenticated: it is malformed, forged, expired, not valid yet, made by or for another party, or an ID token.
        IssuerUnavailable: the issuer's keys are unknown and cannot be fetched.
    """
    verified = await _verify(text, issuer, audience, _ACCESS_TYPES)
    claims = verified.claims
    # Keycloak names the kind in `typ`, Amazon Cognito in `token_use`.
    if claims.get("typ") == "ID" or claims.get("token_use") == "id" or not _OF_ID_TOKENS.isdisjoint(claims):
        raise _refused("is an ID token, not an access token")
    return verified


async def _verify(text: str, issuer: Issuer, audience: str, types: frozenset[str]) -> Verified:
    if len(text) > _LONGEST:
        raise _refused(f"is longer than {_LONGEST} characters")
    try:
        header = jws.extract_compact(text.encode(), registry=_HEADERS).headers()
    except _MALFORMED:
        raise _refused("is not a signed JSON Web Token") from None
    if header.get("alg") not in ALGORITHMS:
        raise _refused(f"is signed by {str(header.get('alg'))[:20]!a}; accepted are {', '.join(ALGORITHMS)}")
    if str(header.get("typ", "")).lower().removeprefix("application/") not in types:
        raise _refused(f"is of the type {str(header.get('typ'))[:40]!a}, which is for another use")
    key_id = header.get("kid")
    key = await issuer.key(key_id if isinstance(key_id, str) else None)
    try:
        claims = jwt.decode(text, key, registry=_HEADERS).claims
    except _MALFORMED:
        raise _refused("has a wrong signature") from None
    needed = jwt.JWTClaimsRegistry(
        now=lambda: int(time.time()),
        leeway=SKEW_S,
        iss={"essential": True, "value": issuer.url},
        aud={"essential": True, "value": audience},
        exp={"essential": True},
        sub={"essential": True},
    )
    try:
        needed.validate(claims)
        expires_at = datetime.fromtimestamp(claims["exp"] + SKEW_S, UTC)
    except ExpiredTokenError:
        raise _refused("has expired") from None
    except MissingClaimError as error:
        raise _refused(f"lacks the claim {error.claim}") from None
    except InvalidClaimError as error:
        raise _refused(_FAULTS.get(error.claim or "", f"has an unusable claim {error.claim}")) from None
    except (ValueError, OverflowError, OSError):
        raise _refused("has an unusable claim exp") from None
    return Verified(claims["sub"], expires_at, claims)


async def verify_id_token(text: str, issuer: Issuer, client_id: str, nonce: str) -> Verified:
    """Check an ID token that answers the sign-in with this `nonce`. Raises as `verify` does."""
    verified = await _verify(text, issuer, client_id, _ID_TYPES)
    if not hmac.compare_digest(str(verified.claims.get("nonce", "")).encode(), nonce.encode()):
        raise _refused("belongs to another sign-in")
    parties = verified.claims["aud"]
    if verified.claims.get("azp", client_id if isinstance(parties, str) or len(parties) == 1 else None) != client_id:
        raise _refused("was made for another client")
    return verified


#: Claim -> what is wrong with a token whose claim is not as it must be.
_FAULTS = {
    "iss": "is of another issuer",
    "aud": "is for another audience",
    "nbf": "is not valid yet",
    "iat": "was issued in the future",
}


def _refused(fault: str) -> Unauthenticated:
    return Unauthenticated(
        f"The token {fault}.", "Get a new token from the issuer in LETHE_OIDC_ISSUER.", presented=True
    )
