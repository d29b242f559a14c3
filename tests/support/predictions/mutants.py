"""Mistakes that the checker of predictions must notice, made in the processes of the service under check.

This is the only place that uses names of the service's own code. If those change, only this module changes.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from service.predictions import heads
from service.unlearner import loading, version_writer

#: The step that makes the committed version answer: the first of `VersionWriter.finish`.
_SHOW = "show"


def applied_before_it_is_shown() -> None:
    """Write `applied` first, and show the version to the readers after it."""
    writer: Any = version_writer.VersionWriter
    finish, show = writer.finish, getattr(writer, _SHOW)

    async def finish_later(self: Any, version: Any, own: Any, watch: Any) -> Any:
        apply = own.apply

        async def nothing(*_: Any) -> None:
            """Replaces a step that runs at another time."""

        async def applied_and_shown(*arguments: Any) -> None:
            await apply(*arguments)
            await show(self)

        setattr(self, _SHOW, nothing)
        own.apply = applied_and_shown
        try:
            return await finish(self, version, own, watch)
        finally:
            delattr(self, _SHOW)
            del own.apply

    writer.finish = finish_later


def shown_only_by_a_commit() -> None:
    """Show nothing after loading the model, only what this session commits or finishes."""
    entries: Any = heads.Heads
    loader: Any = loading.Loader
    load, make = loader.load, entries.show

    async def load_without_showing(self: Any, *arguments: Any) -> Any:
        entries.show = lambda *_: None
        try:
            made, unfinished = await load(self, *arguments)
        finally:
            entries.show = make
        if unfinished is None:
            commit = type(made).commit

            # The start also checks what is shown, before it erases.
            async def nothing() -> None:
                """Replaces `show` until this session commits."""

            async def commit_and_show_again(*given: Any) -> None:
                delattr(made, _SHOW)
                del made.commit
                await commit(made, *given)

            setattr(made, _SHOW, nothing)
            made.commit = commit_and_show_again
        return made, unfinished

    loader.load = load_without_showing


MUTANTS: Mapping[str, Callable[[], None]] = {
    "applied-before-shown": applied_before_it_is_shown,
    "shown-only-by-a-commit": shown_only_by_a_commit,
}


def boot_id_from(path: Path) -> None:
    """Read the machine's boot id from this file from now on."""
    heads.boot_id = lambda: path.read_text().strip().replace(" ", "-")
