"""Versions of a model that do not fit on the disk."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from unittest.mock import patch

from model_store.disk.durable import DurableChanges, durable_changes


def refusing_midway(refuse: Callable[[Path], None]) -> Callable[[], AbstractContextManager[DurableChanges]]:
    """Return a `durable_changes` for `model_store.versions` that calls `refuse` halfway through each file."""

    @contextmanager
    def begin() -> Iterator[DurableChanges]:
        with durable_changes() as changes:
            whole = changes.write

            def write(path: Path, parts: Iterable[bytes | memoryview]) -> None:
                content = b"".join(parts)
                whole(path, [content[: len(content) // 2]])
                refuse(path)
                whole(path, [content])

            with patch.object(changes, "write", write):
                yield changes

    return begin
