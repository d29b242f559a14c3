"""What the intake tells callers whose requests it does not take."""

from typing import ClassVar
from uuid import UUID

from service.errors import Conflict, InvalidRequest, LetheError, NotFound, QueueFull, Unavailable

_RETRY_AFTER_SECONDS = 5


def refusal(error: Exception, model: str) -> Exception:
    """Return what to tell the one caller whose request could not be stored because of `error`."""
    if "requests_model_fkey" in str(error):
        return NotFound(f"Unknown model {model}.", "Import it first.")
    if isinstance(error, LetheError) or not _is_text_error(error):
        return error
    return InvalidRequest(
        "The request contains text that cannot be stored: a NUL character or an unpaired surrogate.",
        "Remove it from the reference and the Idempotency-Key.",
    )


class SaltUsed(Conflict):
    """A salt that the caller gave was used before, by this request or an earlier one."""

    slug: ClassVar[str] = "salt-used"
    title: ClassVar[str] = "Salt used before"

    def __init__(self) -> None:
        super().__init__(
            "One of the salts was used before, so two requests could be linked.",
            "The request was not accepted. Draw new random salts for each request, and repeat a request whose "
            "answer was lost with its Idempotency-Key.",
        )


def queue_full(too_many: str) -> QueueFull:
    """Return the error for a request with which `too_many` nodes would wait."""
    return QueueFull(
        f"{too_many} would be queued.",
        f"Try again in {_RETRY_AFTER_SECONDS} seconds.",
        retry_after=_RETRY_AFTER_SECONDS,
    )


def reused_key(request_id: UUID) -> Conflict:
    """Return the error for an idempotency key that came with another body before."""
    return Conflict(
        f"This Idempotency-Key was used with a different body, for request {request_id}.",
        "Use a new key for a new request, or send the first body again.",
    )


def shutting_down() -> Unavailable:
    """Return the error for a request that comes too late for this process."""
    return Unavailable("Lethe is shutting down.", "Try again in a few seconds, with the same Idempotency-Key.")


def _is_text_error(error: Exception) -> bool:
    """Tell whether the driver, or Postgres (SQLSTATE class 22), refused a value."""
    original = getattr(error, "orig", None)
    state = getattr(original, "sqlstate", None) or ""
    return (
        isinstance(error, UnicodeError)
        or state.startswith("22")
        or isinstance(getattr(original, "__cause__", None), ValueError)
    )
