"""Prometheus output: metrics of one process and its siblings, each under the label `process`.

Siblings are all processes of a home that answer requests or unlearn. They query each other over sockets when somebody
scrapes. So counting costs nothing else, and a full disk, which kills processes that write to a mapped file, kills none
here.
"""

import asyncio
import re
from collections.abc import Collection, Iterable
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from service.observability.sockets import answering, connected

#: Longest wait for a sibling; a stopped one is left out (seconds).
_SIBLING_S = 1.0
_FAMILY = re.compile(r"^(?=# HELP )", re.MULTILINE)


class Exposition:
    """The metrics of a process, and of those that share its folder."""

    def __init__(self, registry: CollectorRegistry, process: str, folder: Path) -> None:
        """`process` is its name among its siblings, such as `api-0`; their sockets are in `folder`."""
        self.registry = registry
        self._process = process
        self._folder = folder

    async def __call__(self, hidden: Collection[str] = ()) -> bytes:
        """Return the metrics in Prometheus' text format, without those with the names `hidden`."""
        shown = await asyncio.gather(self._own(), *(_ask(path) for path in self._siblings()))
        return _merged(shown, hidden).encode()

    def shared(self) -> AbstractAsyncContextManager[None]:
        """Answer siblings inside the block. A socket left by a dead process of this name is replaced."""
        return answering(self._folder / f"{self._process}.sock", lambda _: self._own())

    async def _own(self) -> bytes:
        # Run in a thread: rendering hundreds of lines takes milliseconds and would block requests.
        return await asyncio.to_thread(generate_latest, _Named(self.registry, self._process))

    def _siblings(self) -> list[Path]:
        return sorted(path for path in self._folder.glob("*.sock") if path.stem != self._process)


class _Named(Collector):
    """The metrics of a registry, labelled with the process name."""

    def __init__(self, registry: CollectorRegistry, process: str) -> None:
        self._registry = registry
        self._process = process

    def collect(self) -> Iterable[Metric]:
        for family in self._registry.collect():
            named = Metric(family.name, family.documentation, family.type, family.unit)
            named.samples = [
                Sample(sample.name, sample.labels | {"process": self._process}, *sample[2:])
                for sample in family.samples
            ]
            yield named


async def _ask(path: Path) -> bytes:
    """Return a sibling's metrics; empty if it is dead or does not answer."""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(_SIBLING_S), connected(path) as (answer, _):
            return await answer.read()
    return b""


def _merged(shown: Iterable[bytes], hidden: Collection[str]) -> str:
    """Merge pages so that each family occurs once, with the samples of all; leave out the families `hidden`."""
    families: dict[str, list[str]] = {}
    for page in shown:
        for family in _FAMILY.split(page.decode()):
            lines = family.splitlines()
            if not lines or lines[0].split()[2] in hidden:
                continue
            families.setdefault("\n".join(lines[:2]), []).extend(lines[2:])
    return "".join("\n".join((head, *samples)) + "\n" for head, samples in families.items())
