"""What commands print: results to stdout, everything else to stderr."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import IO, Annotated

import msgspec
import typer
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Table
from rich.text import Text

from model_store.work import Work
from service.text import json_for_terminals, visible

#: Width of a page that is not shown on a terminal; nothing is wrapped or cut at eighty columns in a pipe.
_PIPE_WIDTH = 200
#: Seconds between two lines of progress where there is no terminal.
_LINES_S = 10.0

#: Of every command that reports something, for `print_result`.
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one document per line; messages go to stderr.")]


def stdout() -> Console:
    """The console for results."""
    return Console(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)


def stderr() -> Console:
    """The console for progress, notes and errors."""
    return Console(stderr=True, soft_wrap=True, highlight=False, width=None if sys.stderr.isatty() else _PIPE_WIDTH)


def read_lines(file: Path) -> list[str]:
    """The lines of a file, or of stdin for `-`, without blanks at either end; empty ones are left out."""
    text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    return [line.strip() for line in text.splitlines() if line.strip()]


def print_result(document: object, as_json: bool, *text: RenderableType) -> None:
    """Print a result to stdout, at once: `document` as a line of JSON, or `text`, which is for people."""
    if as_json:
        sys.stdout.write(json_for_terminals(msgspec.json.encode(document)) + "\n")
        sys.stdout.flush()
        return
    for one in text:
        stdout().print(visible(one) if isinstance(one, str) else one, markup=False)


@contextmanager
def written(out: Path | None) -> Iterator[IO[bytes]]:
    """A new file for its owner alone, or stdout for None.

    Nobody else reads it before its owner has decided who may. Nothing is left of it where the block fails: half a
    document looks like a whole one. Raises FileExistsError.
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


def report(detail: str, remedy: str = "") -> None:
    """Print an error and what to do about it, to stderr."""
    console = stderr()
    console.print(Text.assemble(("error: ", "bold red"), visible(detail)))
    if remedy:
        console.print(Text.assemble(("  ", ""), visible(remedy)))


def note(text: str) -> None:
    """Print something worth knowing that is not the result, to stderr."""
    stderr().print(Text(visible(text)))


@contextmanager
def doing(what: str, work: Work | None = None) -> Iterator[Work]:
    """Show, for the time of the block, what is being done: `what` first, then the steps of the `work` yielded.

    On a terminal with a bar, which pulses where the time left is not known; elsewhere in a line now and then.
    """
    work, console = work or Work(), stderr()
    work.begin(what)
    if console.is_terminal:
        with _Bar(work, console):
            yield work
        return
    ended = Event()

    def tell() -> None:
        while not ended.wait(_LINES_S):
            if said := work.said:
                note(said)

    telling = Thread(target=tell, name="progress", daemon=True)
    telling.start()
    try:
        yield work
    finally:
        ended.set()
        telling.join()


@contextmanager
def interrupted(left: Callable[[], str]) -> Iterator[None]:
    """Where Ctrl-C ends the block, print what `left` says: what was done, how things are now, and what to do."""
    try:
        yield
    except KeyboardInterrupt:
        note(f"Stopped. {left()}")
        raise


class _Bar(Progress):
    """Looks at how far `work` has come whenever it is drawn, so that the work itself waits for no terminal."""

    def __init__(self, work: Work, console: Console) -> None:
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn())
        self._work = work
        super().__init__(*columns, TextColumn("{task.fields[pace]}"), console=console, transient=True)
        self.add_task("", total=None, pace="")

    def get_renderables(self) -> Iterable[RenderableType]:
        """The line as it is now."""
        share, what = self._work.share, visible(f"{self._work.what} …")
        for task in self.tasks:
            # Without a total the bar pulses; to `update`, None would mean that it stays as it is.
            task.total = None if share is None else 1.0
            self.update(task.id, description=what, completed=share or 0.0, pace=self._work.pace)
        return super().get_renderables()


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> Table:
    """A plain table of text cells; cells are not markup."""
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
