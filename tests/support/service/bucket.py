"""A stand-in for an S3-compatible server on loopback: the four calls that a ledger makes, as Amazon documents them."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

#: Keys in one page of a list: small, so that lists have several.
_PAGE = 3


@dataclass
class Bucket:
    """The objects, and what was asked for."""

    url: str
    objects: dict[str, bytes] = field(default_factory=dict)
    #: Methods with the headers of conditions and signatures.
    requests: list[tuple[str, str | None, str]] = field(default_factory=list)
    #: Whether the server answers 503.
    is_out: bool = False
    #: Whether the answer of the next write is lost.
    loses_answer: bool = False


@contextmanager
def served_bucket() -> Iterator[Bucket]:
    """Serve a bucket on a free port until the end of the block."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            condition, signature = self.headers.get("If-None-Match"), self.headers.get("Authorization", "")
            with lock:
                bucket.requests.append((self.command, condition, signature))
                if bucket.is_out:
                    return self.answer(503, b"<Error><Code>SlowDown</Code></Error>")
                return self.serve(body, condition)

        do_GET = do_PUT = do_POST = handle_any

        def serve(self, body: bytes, condition: str | None) -> None:
            parts = urlsplit(self.path)
            key = unquote(parts.path).split("/", 2)[2] if parts.path.count("/") > 1 else ""
            if self.command == "PUT":
                if condition == "*" and key in bucket.objects:
                    return self.answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
                bucket.objects[key] = body
                if bucket.loses_answer:
                    bucket.loses_answer, self.close_connection = False, True
                    return None
                return self.answer(200, b"", ETag='"written"')
            if self.command == "POST" and parts.query.startswith("delete"):
                keys = [unescape(key) for key in re.findall(r"<Key>([^<]*)</Key>", body.decode())]
                for one in keys:
                    bucket.objects.pop(one, None)
                gone = "".join(f"<Deleted><Key>{escape(one)}</Key></Deleted>" for one in keys)
                return self.answer(200, f"<DeleteResult>{gone}</DeleteResult>".encode())
            if "list-type=2" in parts.query:
                return self.answer(200, self.listing(parse_qs(parts.query)))
            if key not in bucket.objects:
                return self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return self.answer(200, bucket.objects[key], ETag='"written"', **{"Last-Modified": _DATE})

        def listing(self, query: dict[str, list[str]]) -> bytes:
            prefix, after = query.get("prefix", [""])[0], query.get("continuation-token", [""])[0]
            keys = sorted(key for key in bucket.objects if key.startswith(prefix) and key > after)
            if "delimiter" in query:
                keys = [key for key in keys if "/" not in key.removeprefix(prefix)]
            page, rest = keys[:_PAGE], keys[_PAGE:]
            more = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if rest else ""
            contents = "".join(
                f"<Contents><Key>{escape(key)}</Key><Size>{len(bucket.objects[key])}</Size>"
                '<LastModified>2026-11-27T00:00:00.000Z</LastModified><ETag>"written"</ETag></Contents>'
                for key in page
            )
            return (
                f"<ListBucketResult><IsTruncated>{str(bool(rest)).lower()}</IsTruncated>"
                f"<KeyCount>{len(page)}</KeyCount>{more}{contents}</ListBucketResult>"
            ).encode()

        def answer(self, status: int, body: bytes, **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    bucket = Bucket(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield bucket
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


_DATE = "Fri, 27 Nov 2026 00:00:00 GMT"


def is_signed(authorization: str) -> bool:
    """Whether a request was signed as Amazon's version 4 wants it."""
    return bool(re.match(r"AWS4-HMAC-SHA256 Credential=tester/\d{8}/eu-west-1/s3/aws4_request", authorization))
