"""The program `keys_process.py ORDER`: an intake that follows orders, or the unlearner's handling of keys.

It is killed or stopped when it reaches a failure point for the given time. Each answer is a line of its output.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

from service import failure_points
from service.access.key_disposal import UnneededKeys
from service.access.keyring import Keyring
from service.access.own_slots import OwnSlots
from service.db.engine import create_engine
from service.domain.kinds import RequestKind
from service.domain.records import Targets
from service.errors import Conflict
from service.processes.key_folder import open_request_keys
from service.requests.intake import Intake, NewRequest

#: Number of simultaneous calls, which are thus grouped.
_AT_ONCE = 3


def targets_of(key: str) -> Targets:
    """Return the targets for an idempotency key."""
    return Targets(nodes=(f"node of {key}",), node_salts={f"node of {key}": "5a17"})


class Doom:
    """Sends this process a signal at a failure point."""

    def __init__(self, point: str, occurrence: int, number: int) -> None:
        self._point, self._left, self._number = point, occurrence, number

    def reached(self, point: str, cause: object = None) -> None:
        """Called by the service."""
        if point == self._point:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), self._number)


async def intake(order: dict[str, Any], keys: Path) -> None:
    """Accept, repeat and cancel, as ordered."""
    engine = create_engine(order["database_url"])
    with OwnSlots.open(keys / "requests") as slots:
        intake = Intake(engine, slots, Keyring.open(keys), max_queued_nodes=None)

        async def do(what: str, key: str, request: str | None) -> None:
            new = NewRequest(
                order["model"], RequestKind.NODE, targets_of(key), None, UUID(order["api_key_id"]), key, bytes(32)
            )
            answer: dict[str, Any] = {"did": what, "key": key, "id": request}
            if what == "accept":
                accepted = await intake.accept(new)
                answer["id"] = str(accepted.request.id)
                answer["nodes"] = None if accepted.targets is None else list(accepted.targets.nodes)
            else:
                try:
                    await intake.cancel(UUID(request), UUID(order["api_key_id"]))
                except Conflict:
                    # Done by another process, or by this one before it was killed.
                    answer["did"] = "cancel"
            print(json.dumps(answer), flush=True)

        orders = order["orders"]
        for first in range(0, len(orders), _AT_ONCE):
            await asyncio.gather(*(do(*one) for one in orders[first : first + _AT_ONCE]))
        await intake.close()
    await engine.dispose()


async def unlearner(order: dict[str, Any], keys: Path) -> None:
    """Destroy keys until it is killed."""
    engine = create_engine(order["database_url"])
    unneeded = UnneededKeys(engine, await open_request_keys(engine, keys, Keyring.open(keys)))
    await unneeded.begin()
    print("ready", flush=True)
    await unneeded.run(asyncio.Event())


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    if given["doom"] is not None:
        failure_points.reached = Doom(*given["doom"]).reached
    part = intake if given["part"] == "intake" else unlearner
    asyncio.run(part(given, Path(given["keys"])))
