"""How long each step took."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Stopwatch:
    """Milliseconds by step."""

    durations_ms: dict[str, float] = field(default_factory=dict)

    async def time(self, step: str, work: Callable[[], T], executor: Executor) -> T:
        """Runs blocking `work` on the executor, off the event loop, and adds up how long it took."""
        started = time.perf_counter()
        result = await asyncio.get_running_loop().run_in_executor(executor, work)
        spent = (time.perf_counter() - started) * 1000
        self.durations_ms[step] = round(self.durations_ms.get(step, 0.0) + spent, 3)
        return result

    def split(self, step: str, part: str, seconds: float) -> None:
        """Of the time of `step`, the last `seconds` were spent on `part`."""
        milliseconds = round(seconds * 1000, 3)
        self.durations_ms[part] = self.durations_ms.get(part, 0.0) + milliseconds
        self.durations_ms[step] = round(max(0.0, self.durations_ms[step] - milliseconds), 3)
