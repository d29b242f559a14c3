"""Process a batch of queued requests: decrypt, resolve, then complete or apply them to the end."""

import asyncio
import contextlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID

import structlog
import torch

from projector.device import is_out_of_memory
from projector.errors import DeviceError, WorkersLost
from projector.graph.graph import NO_LABEL
from service.access.request_keys import decrypt_targets
from service.db.transactions import fenced_transaction, transaction
from service.domain.kinds import Part, RequestKind, ends_of
from service.domain.records import QueuedRequest
from service.domain.states import RepairPolicy
from service.domain.versions import Version
from service.errors import Conflict, Unavailable
from service.log.leaves import AlreadyDeleted
from service.predictions.version_rows import BatchRepository, RequestsWithdrawn
from service.requests.holds import Holds, Waiting, behind
from service.requests.lookup import RequestRepository
from service.requests.moves import SEND_ANEW, RequestMoves
from service.requests.tombstones import TombstoneLookup
from service.unlearner.batch_steps import BatchPreparation, BatchSteps
from service.unlearner.claims import Change, CommittedGraph, DecryptedRequest, Known
from service.unlearner.context import Context
from service.unlearner.joining_batch import misfits
from service.unlearner.new_version import Stopwatch
from service.unlearner.outcomes import nothing_left
from service.unlearner.placement import NotPublishable
from service.unlearner.resolve import Resolution, absent, refused_for_public, resolve
from service.unlearner.version_writer import VersionWriter

_UNREADABLE = (
    "The ids that this request names cannot be read: their key is missing or wrong. Restore the key folder and retry "
    f"the request. If the key is lost: {SEND_ANEW}"
)
_UNKNOWN = "{} of the nodes or edges in this request are not in the model."
_NEVER = (
    "Withdrawing a label needs the repair, and this model is served with --repair never. Nothing in this request was "
    "done."
)
#: Maximum time that requests with nothing to delete hold up the others (seconds).
_LONGEST_WAIT_S = 30.0
#: Consecutive requests that each cannot be computed alone, after which the rest of a batch is deferred.
_MOST_UNCOMPUTED = 4


@dataclass(frozen=True)
class _Attempt:
    """Result of an attempt to apply changes as one batch."""

    committed: tuple[Version, BatchSteps] | None = None
    #: The parts of it to apply instead.
    instead: Sequence[Sequence[Change]] = ()
    #: Whether the single deletion could not be computed, through no fault of the request.
    is_uncomputed: bool = False


class Processor:
    """Processes requests to their end on one model, under one lease."""

    def __init__(self, context: Context, writer: VersionWriter) -> None:
        self._context = context
        self._writer = writer
        self._batches = BatchPreparation(context, writer)
        self._tombstones = TombstoneLookup(context.engine, context.keyring, context.model)
        #: Requests that the last batch deferred to this one.
        self._deferred: frozenset[UUID] = frozenset()
        self._log = structlog.get_logger(__name__)

    async def process(self, batch: Sequence[QueuedRequest]) -> frozenset[UUID]:
        """Process `batch` to its end; return the requests that need its changes before they can be completed.

        Requests that the device cannot compute stay queued. Raises Unavailable for them once the others are done.
        """
        batch, obstacles = await self._take(batch)
        claimed, unreadable = self._open(batch)
        claimed, undecided = await self._pass_holds(claimed, obstacles)
        committed = self._writer.resident.committed
        # All in one call, with no more names than the batch has.
        names = list({end for each in claimed for target in each.named for end in ends_of(target)})
        found = zip(names, committed.node_ids.rows_of(names).tolist(), strict=True)
        rows = {name: row for name, row in found if row >= 0}
        refused = refused_for_public(claimed, {name for name, row in rows.items() if committed.public[row]})
        claimed = [each for each in claimed if each.request.id not in refused]
        present = CommittedGraph(
            rows=rows,
            featured=committed.state.features.in_span,
            trained=committed.live_graph.targets != NO_LABEL,
            edges=committed.live_graph.propagator.edges,
        )
        resolution = resolve(claimed, present, await self._known(claimed, present))
        unknown = {request: _UNKNOWN.format(count) for request, count in resolution.unknown.items()}
        unfit = await self._context.run(lambda: self._unfit(resolution.changes))
        await self._fail(refused | dict.fromkeys(unreadable, _UNREADABLE) | unknown | dict(resolution.unfit) | unfit)
        resolution = replace(
            resolution, changes=tuple(each for each in resolution.changes if each.claimed.request.id not in unfit)
        )
        is_all = await self._apply(resolution.changes)
        await self._complete_gone(resolution)
        if not is_all:
            # No details, since everybody can read this; the log has them.
            raise Unavailable(
                "There was not enough memory or room for temporary files.",
                "Requests stay queued. Give the machine more memory or disk, or use a larger device; the log "
                "says which is short.",
            )
        self._deferred = frozenset(each.request.id for each in resolution.deferred)
        return self._deferred | undecided

    async def _known(self, claimed: Sequence[DecryptedRequest], present: CommittedGraph) -> Known:
        """Return what the database knows of what `claimed` names and the graph does not have."""
        missing = absent(claimed, present)
        # None instead of a request stands for one that the database lacks.
        deleted_by = {part: await self._tombstones.find(part, tuple(targets)) for part, targets in missing.items()}
        gone = deleted_by[Part.NODES]
        nodes = [node for node in missing[Part.NODES] if isinstance(node, str)]
        _, queued = await self._tombstones.states(nodes)
        adding = {end for each in claimed if each.joins for target in each.named for end in ends_of(target)}
        by = {request for node, request in gone.items() if node in adding and request is not None}
        async with transaction(self._context.engine) as connection:
            received = await RequestRepository(connection).received(by)
        return Known(deleted_by, queued, received)

    def _unfit(self, changes: Sequence[Change]) -> dict[UUID, str]:
        """Return the requests whose content does not fit the model or its repair policy, with the reason."""
        resident, manifest = self._writer.resident, self._writer.manifest
        unfit = {change.claimed.request.id: reason for change, reason in misfits(changes, resident.committed, manifest)}
        if self._context.placement.policy is RepairPolicy.NEVER:
            withdrawn = [each.claimed.request for each in changes if each.claimed.request.kind is RequestKind.LABEL]
            unfit |= {request.id: _NEVER for request in withdrawn}
        return unfit

    async def _take(
        self, batch: Sequence[QueuedRequest]
    ) -> tuple[list[QueuedRequest], list[tuple[QueuedRequest, UUID]]]:
        """Return the requests of `batch` that were not cancelled, and then `Holds.obstacles`.

        The former cannot be cancelled from now on. All at the same moment, so that the end of cancellation does not
        reveal whether there was anything to delete. A request that is held from now on comes too late to stop them.
        """
        async with fenced_transaction(self._context.engine, self._writer.lease) as connection:
            taken = await RequestMoves(connection).take([request.id for request in batch])
            obstacles = await Holds(connection).obstacles(self._context.model)
        return [request for request in batch if request.id in taken], obstacles

    async def _pass_holds(
        self, claimed: list[DecryptedRequest], found: Sequence[tuple[QueuedRequest, UUID]]
    ) -> tuple[list[DecryptedRequest], frozenset[UUID]]:
        """Let the requests behind a hold wait; return the others, and those to process again as their hold just ended.

        All of `claimed` are taken; `found` are the obstacles since then.
        """
        opened = [(request, decrypt_targets(request, self._context.request_keys), held) for request, held in found]
        # Without its key, nobody knows any more what a request names.
        obstacles = [Waiting(request, targets, held) for request, targets, held in opened if targets is not None]
        waits = behind((Waiting(each.request, each.targets) for each in claimed), obstacles)
        if not waits:
            return claimed, frozenset()
        async with fenced_transaction(self._context.engine, self._writer.lease) as connection:
            waiting = await Holds(connection).wait(waits)
        self._log.info("requests.behind_a_hold", requests=len(waiting))
        return [each for each in claimed if each.request.id not in waits], frozenset(waits.keys() - waiting)

    async def _fail(self, failures: Mapping[UUID, str]) -> None:
        """Fail the requests that cannot be processed, each with its reason."""
        if not failures:
            return
        async with fenced_transaction(self._context.engine, self._writer.lease) as connection:
            for request, failure in failures.items():
                with self._unless_ended():
                    await RequestMoves(connection).mark_failed(request, failure)

    async def _complete_gone(self, resolution: Resolution) -> None:
        """Complete the requests that have nothing to delete, with the batch that took them.

        In a batch without changes, wait for the usual duration of a batch if any key may only write. Such a key can
        repeat a request and read when it completed, which would reveal whether a node still existed.
        """
        if not resolution.already_deleted:
            return
        without_work = [each.request.id for each, _ in resolution.already_deleted]
        if not resolution.changes and not self._deferred.issuperset(without_work):
            await self._wait_as_a_batch(without_work)
        async with fenced_transaction(self._context.engine, self._writer.lease) as connection:
            requests = RequestMoves(connection)
            for each, gone in resolution.already_deleted:
                with self._unless_ended():
                    kind = each.request.kind
                    words = nothing_left(kind, named=len(each.named), with_node=gone.with_node, by=gone.by)
                    await requests.mark_completed_without_work(each.request.id, AlreadyDeleted(kind, gone.by), words)
        await self._context.unneeded_keys.destroy_dropped()

    async def _wait_as_a_batch(self, requests: Sequence[UUID]) -> None:
        """Wait as long as the newest batch took, unless the keys of all `requests` may know that none ran."""
        async with transaction(self._context.engine) as connection:
            if await RequestRepository(connection).all_may_know(requests):
                return
            usual_s = await BatchRepository(connection).newest_duration_s(
                self._context.model, repair_budget_s=self._context.repair_budget_s
            )
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._context.stop.wait(), min(usual_s, _LONGEST_WAIT_S))

    @contextlib.contextmanager
    def _unless_ended(self) -> Iterator[None]:
        """Ignore a request cancelled or held since it was claimed."""
        try:
            yield
        except Conflict as conflict:
            self._log.info("request.ended_meanwhile", reason=conflict.title)

    async def _apply(self, changes: Sequence[Change]) -> bool:
        """Apply the changes as one batch; halve a batch that fails until the failing request is alone.

        Returns whether all were computed. A request that cannot be computed, through no fault of its own, stops no
        other. The rest continues in random order, because every retry starts in the same order. After several such
        requests in a row, the rest is left for later.
        """
        parts, is_all, in_a_row = [changes], True, 0
        while parts and in_a_row < _MOST_UNCOMPUTED:
            part = parts.pop(0)
            if not part:
                continue
            watch = Stopwatch()
            attempt = await self._commit(part, watch)
            parts[:0] = attempt.instead
            if attempt.is_uncomputed:
                is_all, in_a_row = False, in_a_row + 1
                random.shuffle(parts)
            elif len(attempt.instead) < 2:
                in_a_row = 0
            if attempt.committed is not None:
                # All changes have left this process's memory; the beat clears them from the other workers.
                await self._context.run(self._writer.resident.committed.live_graph.workers.beat)
                # Once committed, it must be finished: retry until done.
                await self._context.retry(partial(self._writer.finish, *attempt.committed, watch))
        return is_all

    async def _commit(self, changes: Sequence[Change], watch: Stopwatch) -> _Attempt:
        """Commit the changes as a batch, or return the parts to try instead.

        Everything computed with the removed rows, and any error with its frames, is freed on return.
        """
        try:
            new, steps = await self._batches.prepare(changes, watch)
        except (WorkersLost, NotPublishable):
            # Not the requests' fault: they are retried with the workers present then.
            raise
        except Exception as error:
            self._log.exception("batch.failed", requests=len(changes))
            if isinstance(error, torch.AcceleratorError) and not is_out_of_memory(error):
                # This device can no longer compute anything.
                raise
            if len(changes) > 1:
                half = len(changes) // 2
                return _Attempt(instead=(changes[:half], changes[half:]))
            if is_out_of_memory(error) or isinstance(error, DeviceError | OSError):
                # The device or the disk for temporary files is at fault, not the request: it is retried.
                return _Attempt(is_uncomputed=True)
            failure = f"The update of the model failed ({type(error).__name__})."
            await self._fail({changes[0].claimed.request.id: failure})
            return _Attempt()
        version = await self._writer.write(new, steps, watch)
        try:
            await self._writer.commit(version, new, steps, watch)
        except RequestsWithdrawn as withdrawn:
            left = [each for each in changes if each.claimed.request.id not in withdrawn.ids]
            return _Attempt(instead=(left,))
        return _Attempt((version, steps))

    def _open(self, batch: Sequence[QueuedRequest]) -> tuple[list[DecryptedRequest], list[UUID]]:
        """Decrypt the requests; also return those whose targets can no longer be read."""
        claimed: list[DecryptedRequest] = []
        unreadable: list[UUID] = []
        for request in batch:
            targets = decrypt_targets(request, self._context.request_keys)
            if targets is None:
                unreadable.append(request.id)
            else:
                claimed.append(DecryptedRequest(request, targets))
        return claimed, unreadable
