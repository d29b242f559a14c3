"""Output, error reports and exit statuses of commands; docs/operations.md lists the statuses."""

import contextlib
import errno
import os
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from threading import Event, Thread
from typing import IO, Annotated

import msgspec
import typer
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Table
from rich.text import Text

from model_store.errors import DatasetNotFound, ImportUnderWay, NoModel
from model_store.work import Work
from projector.errors import ExplainedError
from service.errors import (
    AlreadyRunning,
    ConfigurationError,
    DatabaseDamaged,
    DatabaseRefused,
    EmbeddedServerError,
    KeyMissing,
    LetheError,
)
from service.text import json_for_terminals, visible

#: Width of output that is not on a terminal, so that pipes do not wrap or cut at eighty columns.
_PIPE_WIDTH = 200
#: Seconds between two lines of progress without a terminal.
_LINES_S = 10.0

#: Shared by every command with a result, for `print_result`.
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one document per line; messages go to stderr.")]


def stdout() -> Console:
    """Return the console for results."""
    return Console(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)


def stderr() -> Console:
    """Return the console for progress, notes and errors."""
    return Console(stderr=True, soft_wrap=True, highlight=False, width=None if sys.stderr.isatty() else _PIPE_WIDTH)


def read_lines(file: Path) -> list[str]:
    """Return the non-empty lines of a file, or of stdin for `-`, without surrounding blanks."""
    text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    return [line.strip() for line in text.splitlines() if line.strip()]


def print_result(document: object, as_json: bool, *text: RenderableType) -> None:
    """Print a result to stdout and flush it: `document` as a line of JSON, or `text` for people."""
    if as_json:
        sys.stdout.write(json_for_terminals(msgspec.json.encode(document)) + "\n")
        sys.stdout.flush()
        return
    for one in text:
        stdout().print(visible(one) if isinstance(one, str) else one, markup=False)


@contextmanager
def written(out: Path | None) -> Iterator[IO[bytes]]:
    """Open a new file that only its owner can access, or stdout for None.

    If the block fails, the file is removed, because half a document looks like a whole one. Raises FileExistsError.
    """
    if out is None:
        yield sys.stdout.buffer
        return
    with os.fdopen(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        try:
            yield file
        except BaseException:
            out.unlink()
            raise


@contextmanager
def written_whole(out: Path) -> Iterator[IO[bytes]]:
    """Open a new file that only its owner can access, and that gets its name once the block has ended without an error.

    Raises FileExistsError before the block.
    """
    if out.exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(out))
    unfinished = out.with_name(f".{out.name}.{secrets.token_hex(4)}")
    with written(unfinished) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(out)


def report(detail: str, remedy: str = "") -> None:
    """Print an error and its remedy to stderr."""
    console = stderr()
    console.print(Text.assemble(("error: ", "bold red"), visible(detail)))
    if remedy:
        console.print(Text.assemble(("  ", ""), visible(remedy)))


def note(text: str) -> None:
    """Print a note that is not the result to stderr."""
    stderr().print(Text(visible(text)))


@contextmanager
def show_progress(what: str, work: Work | None = None) -> Iterator[Work]:
    """Show progress during the block: `what` first, then the steps of the yielded `work`.

    On a terminal it is a bar, which pulses if the remaining time is unknown; elsewhere an occasional line.
    """
    work, console = work or Work(), stderr()
    work.begin(what)
    if console.is_terminal:
        with _Bar(work, console):
            yield work
        return
    ended = Event()

    def write_lines() -> None:
        while not ended.wait(_LINES_S):
            if step := work.status:
                note(step)

    writer = Thread(target=write_lines, name="progress", daemon=True)
    writer.start()
    try:
        yield work
    finally:
        ended.set()
        writer.join()


@contextmanager
def interrupted(left: Callable[[], str]) -> Iterator[None]:
    """If Ctrl-C ends the block, print `left()`: what was done, the current state, and what to do."""
    try:
        yield
    except KeyboardInterrupt:
        note(f"Stopped. {left()}")
        raise


class _Bar(Progress):
    """Polls the progress of `work` whenever it is drawn, so that the work never waits for a terminal."""

    def __init__(self, work: Work, console: Console) -> None:
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn())
        self._work = work
        super().__init__(*columns, TextColumn("{task.fields[pace]}"), console=console, transient=True)
        self.add_task("", total=None, pace="")

    def get_renderables(self) -> Iterable[RenderableType]:
        """Return the current line."""
        share, what = self._work.share, visible(f"{self._work.what} …")
        for task in self.tasks:
            # Without a total the bar pulses. `update` cannot set None, which it takes as "unchanged".
            task.total = None if share is None else 1.0
            self.update(task.id, description=what, completed=share or 0.0, pace=self._work.pace)
        return super().get_renderables()


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> Table:
    """Return a plain table of text cells, which are not parsed as markup."""
    made = Table(
        title=Text(visible(title)),
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        padding=(0, 3, 0, 0),
        show_header=any(columns),
    )
    for column in columns:
        made.add_column(Text(visible(column)), overflow="fold")
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else Text(visible(cell)) for cell in row))
    return made


_ABSENT = (404, 410)
_UNANSWERED = (502, 503, 504)


class ExitStatus(IntEnum):
    """Exit status of a command, with its meaning in a sentence."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> "ExitStatus":
        """Create a status with its meaning."""
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
    # An outage to a serving process, but a wrong setting for a command.
    DatabaseRefused: ExitStatus.USAGE,
    AlreadyRunning: ExitStatus.REFUSED,
    ImportUnderWay: ExitStatus.REFUSED,
    EmbeddedServerError: ExitStatus.UNREACHABLE,
    # Outages over HTTP, but files to restore for a command.
    KeyMissing: ExitStatus.FAILED,
    DatabaseDamaged: ExitStatus.FAILED,
    DatasetNotFound: ExitStatus.NOT_FOUND,
    NoModel: ExitStatus.NOT_FOUND,
    FileNotFoundError: ExitStatus.NOT_FOUND,
    FileExistsError: ExitStatus.REFUSED,
    PermissionError: ExitStatus.REFUSED,
}


def status_of(error: BaseException) -> ExitStatus:
    """Return the exit status for an error."""
    from lethe_client import InvalidAccess, ServerUnreachable

    for kind in type(error).__mro__:
        if kind in _BY_KIND:
            return _BY_KIND[kind]
    if isinstance(error, InvalidAccess):
        return ExitStatus.USAGE
    if isinstance(error, ServerUnreachable):
        return ExitStatus.UNREACHABLE
    # The status of a problem document, or of an error that would become one.
    return _of_problem(getattr(error, "status", 500))


def _of_problem(status: int) -> ExitStatus:
    if status in _ABSENT:
        return ExitStatus.NOT_FOUND
    if 400 <= status < 500:
        return ExitStatus.REFUSED
    return ExitStatus.UNREACHABLE if status in _UNANSWERED else ExitStatus.FAILED


def report_error(error: ExplainedError) -> None:
    """Print the error, including the server's own message, and the remedy to stderr."""
    report(error.for_operators if isinstance(error, LetheError) else error.detail, error.remedy)


@contextlib.contextmanager
def reported() -> Iterator[None]:
    """Print errors with a text for users to stderr, and exit with the status of each."""
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
