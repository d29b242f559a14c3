"""With what status a command ends: the one place that says so of an error; docs/operations.md has it as a table."""

from collections.abc import Mapping
from enum import IntEnum

from model_store.errors import DatasetNotFound, ImportUnderWay, NoModel
from service.errors import (
    AlreadyRunning,
    ConfigurationError,
    DatabaseDamaged,
    DatabaseRefused,
    EmbeddedServerError,
    KeyMissing,
)

_ABSENT = (404, 410)
_UNANSWERED = (502, 503, 504)


class ExitStatus(IntEnum):
    """What a script learns of a command that has ended; each has its meaning in a sentence."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> "ExitStatus":
        """The number with its meaning."""
        made = int.__new__(cls, value)
        made._value_ = value
        made.meaning = meaning
        return made

    DONE = 0, "Success."
    FAILED = 1, "A check failed, or another error occurred."
    USAGE = 2, "Wrong usage: an option, an argument or a setting."
    NOT_FOUND = 3, "Not found: a request, a node, a key, a file, a dataset, a model."
    REFUSED = 4, "Refused: missing permission, a conflict, a limit, a file that would be overwritten."
    UNREACHABLE = 5, "Lethe, its database or its Redis is not running or does not answer."
    INTERRUPTED = 130, "Interrupted by Ctrl-C; the output says what was done and what is left."


_BY_KIND: Mapping[type[BaseException], ExitStatus] = {
    ConfigurationError: ExitStatus.USAGE,
    # An outage to a serving process; here, a wrong setting.
    DatabaseRefused: ExitStatus.USAGE,
    AlreadyRunning: ExitStatus.REFUSED,
    ImportUnderWay: ExitStatus.REFUSED,
    EmbeddedServerError: ExitStatus.UNREACHABLE,
    # Outages over HTTP; here, files that must be restored.
    KeyMissing: ExitStatus.FAILED,
    DatabaseDamaged: ExitStatus.FAILED,
    DatasetNotFound: ExitStatus.NOT_FOUND,
    NoModel: ExitStatus.NOT_FOUND,
    FileNotFoundError: ExitStatus.NOT_FOUND,
    FileExistsError: ExitStatus.REFUSED,
    PermissionError: ExitStatus.REFUSED,
}


def status_of(error: BaseException) -> ExitStatus:
    """The status of a command that an error ends."""
    from lethe_client import InvalidAccess, ServerUnreachable

    for kind in type(error).__mro__:
        if kind in _BY_KIND:
            return _BY_KIND[kind]
    if isinstance(error, InvalidAccess):
        return ExitStatus.USAGE
    if isinstance(error, ServerUnreachable):
        return ExitStatus.UNREACHABLE
    # Of a problem document, or of an error that would become one.
    return _of_problem(getattr(error, "status", 500))


def _of_problem(status: int) -> ExitStatus:
    if status in _ABSENT:
        return ExitStatus.NOT_FOUND
    if 400 <= status < 500:
        return ExitStatus.REFUSED
    return ExitStatus.UNREACHABLE if status in _UNANSWERED else ExitStatus.FAILED
