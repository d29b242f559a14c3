"""Questions to the unlearner about nodes outside the graph.

Answering processes have neither weights nor features. The unlearner has both, without anything deleted, so it predicts
on its device and forgets the question. A question names the head; only the unlearner that shows it answers. The asker
checks afterwards that the head is the same, as for every prediction.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path

import msgspec

from projector.graph.columns import NodeFeatures
from service.observability.sockets import answering, connected


class Newcomer(msgspec.Struct, frozen=True):
    """A node outside the graph."""

    #: One number per column of the model, or values by column.
    features: NodeFeatures
    #: Rows of its neighbours, each once.
    neighbours: tuple[int, ...]


class Question(msgspec.Struct, frozen=True):
    """A question for the predictions of nodes, each as if it alone had joined the graph without a label."""

    #: Fencing number and version of the head.
    fencing: int
    version: int
    newcomers: tuple[Newcomer, ...]
    #: The time after which nobody waits for the answer (seconds).
    within_s: float


class Predicted(msgspec.Struct, frozen=True, tag=True):
    """Class probabilities or real-valued targets of all nodes of a question, (m, C)."""

    outputs: tuple[tuple[float, ...], ...]


class Unfit(msgspec.Struct, frozen=True, tag=True):
    """The features of one node do not fit the model."""

    #: Its place in the question.
    place: int
    detail: str


class NotShown(msgspec.Struct, frozen=True, tag=True):
    """This process does not show that version, or no longer."""


class Late(msgspec.Struct, frozen=True, tag=True):
    """The time was not enough."""


Reply = Predicted | Unfit | NotShown | Late

#: Time for a reply to arrive beyond that of its question (seconds).
_GRACE_S = 1.0


def answered(
    home: Path, name: str, answer: Callable[[Question], Awaitable[Reply]]
) -> AbstractAsyncContextManager[None]:
    """Answer questions inside the block, as the process `name` of a home."""

    async def reply(asked: asyncio.StreamReader) -> bytes:
        return msgspec.msgpack.encode(await answer(msgspec.msgpack.decode(await asked.read(), type=Question)))

    return answering(_folder(home) / f"{name}.sock", reply)


async def ask(home: Path, question: Question) -> Reply | None:
    """Return the reply of the unlearner that shows the head, of any other if that replies; None if none does."""
    asked = [asyncio.create_task(_ask(path, question)) for path in sorted(_folder(home).glob("*.sock"))]
    best: Reply | None = None
    try:
        for each in asyncio.as_completed(asked):
            best = await each or best
            if best is not None and not isinstance(best, NotShown):
                return best
    finally:
        for task in asked:
            task.cancel()
    return best


async def _ask(path: Path, question: Question) -> Reply | None:
    # A dead process left a socket that does not answer; one that ends while it answers sends nothing.
    with suppress(OSError, TimeoutError, msgspec.DecodeError):
        async with (
            asyncio.timeout(question.within_s + _GRACE_S),
            connected(path, msgspec.msgpack.encode(question)) as (answer, _),
        ):
            reply: Reply = msgspec.msgpack.decode(await answer.read(), type=Reply)
            return reply
    return None


def _folder(home: Path) -> Path:
    return home / "run" / "newcomers"
