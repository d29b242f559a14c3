"""An OpenID Connect issuer on this machine: discovery, keys that rotate, sign-in, tokens, and the end of sessions."""

import asyncio
import base64
import hashlib
import hmac
import secrets
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode

import uvicorn
from joserfc import jwt
from joserfc.jwk import Key, RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

AUDIENCE, CLIENT, SECRET = "lethe-api", "lethe-dashboard", "s3cret:/+"
#: Who signs in, by the name typed into the form: claims of their ID tokens.
PEOPLE: dict[str, dict[str, Any]] = {
    "auditor": {"sub": "u-1", "groups": ["privacy-team"]},
    "reader": {"sub": "u-2", "groups": ["everybody"]},
    "member of many": {"sub": "u-3", "groups": ["privacy-team", *(f"group-{number}" for number in range(400))]},
}


def new_key() -> RSAKey:
    return RSAKey.generate_key(2048, {"kid": secrets.token_hex(4), "use": "sig", "alg": "RS256"})


@dataclass
class Issuer:
    """A running issuer, and what was asked of it."""

    url: str
    public_url: str
    signing: RSAKey = field(default_factory=new_key)
    published: list[RSAKey] = field(default_factory=list)
    #: Answers every request with 503.
    is_down: bool = False
    key_fetches: int = 0
    #: Set by a request for keys, which is answered once the second is set.
    keys_asked: asyncio.Event = field(default_factory=asyncio.Event)
    keys_answered: asyncio.Event = field(default_factory=asyncio.Event)
    #: Requests for its configuration.
    asked: int = 0
    #: Browser's session -> the person's name.
    sessions: dict[str, str] = field(default_factory=dict)
    #: Code -> the sign-in that it ends.
    _codes: dict[str, dict[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.published.append(self.signing)
        self.keys_answered.set()

    def rotate(self) -> None:
        """Sign with a new key from now on; the earlier one is withdrawn."""
        self.signing = new_key()
        self.published = [self.signing]

    def token(self, key: Key | None = None, alg: str = "RS256", *, kind: str | None = "at+jwt", **claims: Any) -> str:
        """Return an access token; `claims` replace or, as None, remove its usual ones. `kind` is the header's `typ`."""
        now, key = int(time.time()), key or self.signing
        usual = {"iss": self.url, "aud": AUDIENCE, "sub": "app-1", "iat": now, "nbf": now, "exp": now + 300}
        kept = {name: value for name, value in (usual | claims).items() if value is not None}
        header = {"alg": alg, "kid": key.kid or self.signing.kid} | ({} if kind is None else {"typ": kind})
        return jwt.encode(header, kept, key, algorithms=[alg])

    def unsigned(self, **claims: Any) -> str:
        """Return a token with the algorithm `none`."""
        _, payload, _ = self.token(**claims).split(".")
        header = _base64url(b'{"alg":"none"}')
        return f"{header}.{payload}."

    def signed_with_public_key(self, **claims: Any) -> str:
        """Return a token whose HMAC is under the public key, which a careless verifier takes for a secret."""
        header = _base64url(f'{{"alg":"HS256","kid":"{self.signing.kid}"}}'.encode())
        signed = f"{header}.{self.token(**claims).split('.')[1]}"
        return f"{signed}.{_base64url(hmac.digest(self.signing.as_pem(private=False), signed.encode(), 'sha256'))}"

    async def configuration(self, _: Request) -> Response:
        at = self.url
        self.asked += 1
        return self._said(
            {
                "issuer": at,
                "jwks_uri": f"{at}/keys",
                "authorization_endpoint": f"{at}/authorize",
                "token_endpoint": f"{at}/token",
                "end_session_endpoint": f"{at}/end",
            }
        )

    async def keys(self, _: Request) -> Response:
        self.key_fetches += 1
        self.keys_asked.set()
        await self.keys_answered.wait()
        # As some issuers do, it also publishes a key that is not for signatures, and one of an unknown kind.
        others = [{"kty": "RSA", "use": "enc", "kid": "enc"}, {"kty": "AKP", "kid": "later", "pub": "x"}]
        return self._said({"keys": [*others, *(key.as_dict(private=False) for key in self.published)]})

    async def authorize(self, request: Request) -> Response:
        """Show the form for a name, or go on for who is signed in already."""
        asked = dict(request.query_params)
        assert asked["response_type"] == "code"
        assert asked["client_id"] == CLIENT
        assert asked["redirect_uri"] == f"{self.public_url}/dashboard/sign-on/callback"
        assert asked["code_challenge_method"] == "S256"
        assert "openid" in asked["scope"].split()
        session = request.cookies.get("issuer_session", "")
        if request.method == "POST":
            session = secrets.token_hex(8)
            self.sessions[session] = dict(parse_qsl((await request.body()).decode()))["name"]
        if session not in self.sessions:
            return HTMLResponse('<form method="post"><input name="name"><button>Sign in</button></form>')
        code = secrets.token_hex(8)
        self._codes[code] = asked | {"name": self.sessions[session]}
        back = urlencode({"code": code, "state": asked["state"], "iss": self.url, "session_state": "x.y"})
        response = RedirectResponse(f"{asked['redirect_uri']}?{back}", 302)
        response.set_cookie("issuer_session", session)
        return response

    async def token_endpoint(self, request: Request) -> Response:
        """Give an ID token for a code, once, to the client that has its verifier and the secret."""
        sent = dict(parse_qsl((await request.body()).decode()))
        asked = self._codes.pop(sent.get("code", ""), None)
        kind, _, credentials = request.headers.get("authorization", "").partition(" ")
        is_client = kind == "Basic" and base64.b64decode(credentials) == f"{CLIENT}:s3cret%3A%2F%2B".encode()
        challenge = _base64url(hashlib.sha256(sent.get("code_verifier", "").encode()).digest())
        if not is_client:
            return JSONResponse({"error": "invalid_client"}, 401)
        if asked is None or asked["code_challenge"] != challenge or asked["redirect_uri"] != sent["redirect_uri"]:
            return JSONResponse({"error": "invalid_grant"}, 400)
        claims = {**PEOPLE[asked["name"]], "aud": CLIENT, "nonce": asked["nonce"]}
        return self._said(
            {"id_token": self.token(kind="JWT", **claims), "access_token": "opaque", "token_type": "Bearer"}
        )

    async def end(self, request: Request) -> Response:
        """End the session that the ID token names."""
        asked = request.query_params
        claims = jwt.decode(asked["id_token_hint"], self.signing).claims
        assert (claims["aud"], asked["client_id"]) == (CLIENT, CLIENT)
        ended = [one for one, name in self.sessions.items() if PEOPLE[name]["sub"] == claims["sub"]]
        for session in ended:
            del self.sessions[session]
        return RedirectResponse(asked["post_logout_redirect_uri"], 302)

    def _said(self, document: dict[str, Any]) -> Response:
        return JSONResponse({"error": "down"}, 503) if self.is_down else JSONResponse(document)


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@asynccontextmanager
async def issuing(public_url: str = "http://localhost") -> AsyncIterator[Issuer]:
    """Run an issuer for a dashboard at `public_url` until the end of the block."""
    bound = socket.create_server(("127.0.0.1", 0))
    issuer = Issuer(f"http://127.0.0.1:{bound.getsockname()[1]}", public_url)
    routes = [
        Route("/.well-known/openid-configuration", issuer.configuration),
        Route("/keys", issuer.keys),
        Route("/authorize", issuer.authorize, methods=["GET", "POST"]),
        Route("/token", issuer.token_endpoint, methods=["POST"]),
        Route("/end", issuer.end),
    ]
    config = uvicorn.Config(Starlette(routes=routes), log_config=None, access_log=False, lifespan="off")
    server = uvicorn.Server(config)
    running = asyncio.create_task(server._serve([bound]))
    try:
        yield issuer
    finally:
        server.should_exit = True
        await running
        bound.close()
