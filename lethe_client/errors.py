"""Errors of the client's calls, each with the problem (`detail`) and the solution (`remedy`)."""

from collections.abc import Mapping
from typing import Any

from lethe_client.results import Deletion


class LetheClientError(Exception):
    """Base of the client's errors."""

    def __init__(self, detail: str, remedy: str) -> None:
        super().__init__(f"{detail} {remedy}".rstrip())
        self.detail = detail
        self.remedy = remedy


class ProblemError(LetheClientError):
    """The server refused with a problem document (RFC 9457)."""

    def __init__(
        self, *, status: int, type: str, title: str, detail: str, remedy: str, extra: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(detail or title, remedy)
        self.status = status
        #: A URI that identifies the kind of problem.
        self.type = type
        self.title = title
        #: Other members of the document, such as `unknown` or `retry_after`.
        self.extra = dict(extra or {})


class ServerUnreachable(LetheClientError):
    """No response: no server is listening, the connection broke, or it timed out."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(
            f"Lethe does not answer at {url}: {reason}.",
            "Start it with `./lethe serve`, or give its address with --url or LETHE_URL.",
        )


class InvalidAccess(LetheClientError):
    """The address or API key is malformed."""


class DeletionStopped(LetheClientError):
    """The request failed or was cancelled, so waiting is pointless."""

    def __init__(self, deletion: Deletion) -> None:
        reason = deletion.failure or "it was cancelled"
        super().__init__(f"Request {deletion.id} is {deletion.status}: {reason}", "Correct it and send a new request.")
        self.deletion = deletion


class WaitTimeout(LetheClientError):
    """The request did not reach the awaited status in time. It is not lost, and continues."""

    def __init__(self, request_id: str, until: str, timeout_s: float, last: str) -> None:
        super().__init__(
            f"Request {request_id} was not {until} within {timeout_s:g} s; {last}.",
            "It continues by itself: wait again, or check it later.",
        )
