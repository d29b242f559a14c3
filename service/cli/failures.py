"""How a command, and a process that a command has started, says why it failed."""

import contextlib
from collections.abc import Iterator

from projector.errors import ExplainedError
from service.cli.console import report
from service.cli.exit_status import ExitStatus, status_of
from service.errors import LetheError


def report_error(error: ExplainedError) -> None:
    """Print the error, including the server's own message, and the remedy to stderr."""
    report(error.for_operators if isinstance(error, LetheError) else error.detail, error.remedy)


@contextlib.contextmanager
def reported() -> Iterator[None]:
    """Print the errors whose text is for the user to stderr, and exit with the status of each."""
    try:
        yield
    except ExplainedError as error:
        report_error(error)
        raise SystemExit(status_of(error)) from None
    except UnicodeDecodeError as error:
        report(f"The file is not UTF-8 text: {error}.", "Check the path, or convert the file to UTF-8.")
        raise SystemExit(ExitStatus.USAGE) from None
    except OSError as error:
        if error.filename is None:
            raise
        report(f"{error.filename}: {error.strerror}.", "Check the path and its permissions.")
        raise SystemExit(status_of(error)) from None
