"""Mistakes that the checker of predictions must notice, made in the processes of the service that it checks.

The only place that knows names of the service's own code; where those change, this changes, and nothing else.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from service.predictions import heads
from service.unlearner import loading, version_writer

#: What makes the committed version the one that is answered from: the first step of `VersionWriter.finish`.
_SHOW = "show"


def applied_before_it_is_shown() -> None:
    """`applied` is written first, and the version is shown to the readers after it."""
    writer: Any = version_writer.VersionWriter
    finish, show = writer.finish, getattr(writer, _SHOW)

    async def finish_later(self: Any, version: Any, own: Any, watch: Any) -> Any:
        apply = own.apply

        async def nothing(*_: Any) -> None:
            """In place of what is done at another time."""

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
    """A session shows nothing when it has loaded the model, only what it commits itself or finishes."""
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
            # The start makes sure of what is shown, too, before it erases.
            async def nothing() -> None:
                delattr(made, _SHOW)

            setattr(made, _SHOW, nothing)
        return made, unfinished

    loader.load = load_without_showing


MUTANTS: Mapping[str, Callable[[], None]] = {
    "applied-before-shown": applied_before_it_is_shown,
    "shown-only-by-a-commit": shown_only_by_a_commit,
}


def boot_id_from(path: Path) -> None:
    """From now on the machine's boot id is what this file says."""
    heads.boot_id = lambda: path.read_text().strip().replace(" ", "-")
