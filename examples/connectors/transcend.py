"""Takes erasure webhooks from Transcend, and reports when Lethe has completed them.

python -m examples.connectors.transcend; docs/connectors.md lists the variables.
"""

import json
from http.server import BaseHTTPRequestHandler
from os import environ

import httpx2
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey

from examples.connectors import jobs

SOMBRA = httpx2.Client(base_url=environ["SOMBRA_URL"], headers={"Authorization": f"Bearer {environ['TRANSCEND_KEY']}"})
KEY = ECKey.import_key(SOMBRA.get("/public-keys/sombra-general-signing-key").raise_for_status().text)
CLAIMS = jwt.JWTClaimsRegistry(
    leeway=60,
    aud={"essential": True, "value": environ["SOMBRA_AUDIENCE"]},
    scope={"essential": True, "value": "coreIdentifier"},
    jti={"essential": True},
    value={"essential": True},
)
REPORTS = {
    "completed": {},
    "unknown": {"status": "SKIPPED", "message": "Lethe has no such node."},
    "cancelled": {"status": "ACTION_REQUIRED", "message": "The deletion was cancelled in Lethe."},
}


class Webhooks(BaseHTTPRequestHandler):
    """Takes webhooks for privacy request jobs."""

    def do_POST(self) -> None:
        """Store the job before answering. Only what the token signs names the node, and a token counts once."""
        try:
            signed = jwt.decode(self.headers.get("x-sombra-token", ""), KEY, algorithms=["ES384"]).claims
            CLAIMS.validate(signed)
        except (JoseError, ValueError, RecursionError):
            return self.send_error(401)
        size, nonce = int(self.headers.get("Content-Length", 0)), self.headers.get("x-transcend-nonce", "")
        if not nonce or not 0 < size <= 1 << 20 or json.loads(self.rfile.read(size))["type"] != "ERASURE":
            return self.send_error(400, "This connector takes erasures with a nonce, of at most 1 MiB")
        jobs.add(signed["jti"], signed["value"], nonce)
        self.send_response(200)
        return self.end_headers()


def report(nonce: str, outcome: str) -> None:
    """Report the outcome; 409 means that the request has ended or was revoked."""
    answer = SOMBRA.put("/v1/data-silo", headers={"x-transcend-nonce": nonce}, json=REPORTS[outcome])
    if answer.status_code != 409:
        answer.raise_for_status()


if __name__ == "__main__":
    jobs.serve(Webhooks, report)
