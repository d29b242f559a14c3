"""Jobs of a connector: kept in a file, submitted to Lethe, and reported when they have an outcome."""

import os
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import httpx2

from lethe_client import LetheClient, LetheClientError, ProblemError

#: Further statuses are not final.
OUTCOMES = ("completed", "cancelled", "unknown")
#: Reports an outcome with the token that came with the job; raises HTTPError.
Report = Callable[[str, str], None]


def add(job: str, node: str, token: str) -> None:
    """Store a job durably; a known id is ignored."""
    _run("INSERT OR IGNORE INTO jobs VALUES (?, ?, ?)", job, node, token)


def serve(handler: type[BaseHTTPRequestHandler], report: Report) -> None:
    """Take jobs on a port of this machine, behind a proxy with TLS, and advance every open job again and again."""
    handler.timeout = 10  # seconds that a client may be silent
    server = ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), handler)
    Thread(target=server.serve_forever, daemon=True).start()
    lethe = LetheClient(os.environ["LETHE_URL"], os.environ["LETHE_KEY"], retries=0)
    while True:
        for job, node, token in _run("SELECT id, node, token FROM jobs WHERE token IS NOT NULL"):
            try:
                outcome = _outcome(lethe, job, node)
                if outcome in OUTCOMES:
                    report(token, outcome)
                    # Node and token are personal data: only the id stays, so that a replay is recognised.
                    _run("UPDATE jobs SET node = NULL, token = NULL WHERE id = ?", job)
            except (LetheClientError, httpx2.HTTPError, ValueError) as error:
                print(f"Job {job} will be tried again: {error}", file=sys.stderr)
        time.sleep(float(os.environ.get("PAUSE_S", "10")))


def _outcome(lethe: LetheClient, job: str, node: str) -> str:
    """Submit a job, or find it by its key, which makes this safe to repeat."""
    try:
        return lethe.request_deletion([node], idempotency_key=job).status
    except ProblemError as problem:
        if problem.type != "urn:lethe:problem:unknown-nodes":
            raise
        return "unknown"


def _run(statement: str, *values: str) -> list[tuple[str, str, str]]:
    with closing(sqlite3.connect(os.environ["JOBS"], timeout=30)) as file, file:
        file.execute("PRAGMA secure_delete = ON")
        file.execute("CREATE TABLE IF NOT EXISTS jobs (id TEXT PRIMARY KEY, node TEXT, token TEXT)")
        return file.execute(statement, values).fetchall()
