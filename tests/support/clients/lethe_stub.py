"""An HTTP server that answers from a table, to record the requests of the command line."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class LetheStub:
    """Serves `answers[(method, path)]`, a pair of status and JSON document, and records requests.

    A list of pairs is served in order, and its last pair repeats. Bytes in place of a document are served as they are.
    """

    def __init__(self, answers: dict[tuple[str, str], Any]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, str, Any]] = []
        self.keys: list[str | None] = []
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer()

            do_POST = do_GET

            def _answer(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                body = json.loads(self.rfile.read(length)) if length else None
                stub.asked.append((self.command, self.path, body))
                stub.keys.append(self.headers.get("Authorization"))
                found = stub.answers.get((self.command, self.path), (404, {"detail": "Nothing here.", "remedy": "Go."}))
                if isinstance(found, list):
                    found = found.pop(0) if len(found) > 1 else found[0]
                status, document = found
                content = document if isinstance(document, bytes) else json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """Print nothing in tests."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
