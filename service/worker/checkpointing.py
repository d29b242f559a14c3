"""Checkpoints of the Gram factors: written when there is nothing else to do, read at a start."""

import time
from collections.abc import Callable, Iterator

import structlog

from service.versions.context import Context
from service.versions.writer import VersionWriter

#: Fewer features than this are factorised again sooner than a checkpoint is read.
LEAST_FEATURES = 512
#: How long a version must have been the committed one before its factors are written (seconds): under a steady stream
#: of deletions they would be outdated at once.
QUIET_S = 5.0
#: Longest work between two looks for new requests (seconds).
_SLICE_S = 0.25


class Checkpointer:
    """Writes the checkpoint of the committed version, a slice at a time; without one nothing is lost but time."""

    def __init__(
        self,
        context: Context,
        writer: VersionWriter,
        *,
        least_features: int = LEAST_FEATURES,
        quiet_s: float = QUIET_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._writer = writer
        self._context = context
        self._least_features = least_features
        self._quiet_s = quiet_s
        self._clock = clock
        self._version: int | None = None
        self._since = 0.0
        self._writing: Iterator[None] | None = None
        self._is_done = False
        self._log = structlog.get_logger(__name__)

    @property
    def due(self) -> bool:
        """Whether `step` has something to do."""
        resident = self._writer.resident
        if self._version != resident.committed.state.version:
            # What was being written of an earlier version is forgotten: it knows what was deleted since.
            self._version, self._since, self._writing = resident.committed.state.version, self._clock(), None
            wide = resident.committed.state.features.gram.M.shape[0] >= self._least_features
            self._is_done = not wide or resident.committed.from_checkpoint
        return not self._is_done and self._clock() - self._since >= self._quiet_s

    async def step(self) -> None:
        """Writes for one slice. A disk that refuses is told of, and the version goes without."""
        try:
            await self._context.run(self._advance)
        except OSError as error:
            self._writing, self._is_done = None, True
            self._log.warning("checkpoint.not_written", reason=error.strerror or type(error).__name__)

    def _advance(self) -> None:
        if self._writing is None:
            self._writing = self._writer.checkpoint_steps()
        until = self._clock() + _SLICE_S
        for _ in self._writing:
            if self._clock() >= until:
                return
        self._writing, self._is_done = None, True
        self._log.info("checkpoint.written", version=self._version)
