"""Takes erasures from fides, and calls it back once Lethe has completed them.

python -m examples.connectors.fides; docs/connectors.md lists the variables.
"""

import hmac
import os
from hashlib import sha256
from http.server import BaseHTTPRequestHandler
from urllib.parse import unquote

import httpx2

from examples.connectors import jobs


class Erasures(BaseHTTPRequestHandler):
    """Takes DELETE /nodes/NODE from an integration with the callback strategy."""

    def do_DELETE(self) -> None:
        """Store the job before answering, so that none is lost while Lethe is away."""
        sent, known = self.headers.get("Authorization", ""), f"Bearer {os.environ['CONNECTOR_TOKEN']}"
        if not hmac.compare_digest(sent.encode(), known.encode()):
            return self.send_error(401)
        before, _, node = self.path.partition("/nodes/")
        token = self.headers.get("reply-to-token", "")
        if before or not node or not token:
            return self.send_error(400)
        jobs.add(sha256(token.encode()).hexdigest(), unquote(node), token)
        self.send_response(202)
        return self.end_headers()

    def log_request(self, *_: object) -> None:
        """Log no requests: their paths name nodes."""


def report(token: str, outcome: str) -> None:
    """Call fides back. A cancelled deletion is never reported, since fides would take it for an erasure."""
    if outcome == "cancelled":
        return
    # Not the header `reply-to`, which could name another host.
    url = f"{os.environ['FIDES_URL']}/api/v1/request-task/callback"
    masked = {"rows_masked": int(outcome == "completed")}
    answer = httpx2.post(url, headers={"Authorization": f"Bearer {token}"}, json=masked)
    if "status 'complete'" not in answer.text:  # the response to an earlier call was lost
        answer.raise_for_status()  # 400 also means that fides is not waiting yet


if __name__ == "__main__":
    jobs.serve(Erasures, report)
