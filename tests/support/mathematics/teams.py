"""Several workers on this machine, for the duration of a test."""

import multiprocessing
import os
import queue
import traceback
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from projector import Model
from projector.forgetting.training_rows import TrainingRows
from projector.parallel.distributed import Distributed
from projector.parallel.workers import Workers

if TYPE_CHECKING:
    from multiprocessing import Queue

#: Longest wait of a collective; a dead follower's connection breaks long before.
TIMEOUT_S = 120.0


def in_team(count: int, folder: Path, work: Callable[..., Any], *arguments: Any) -> Any:
    """Run `work(workers, *arguments)` in `count` processes and return the result of the first.

    Raises RuntimeError with the traceback of one that raised.
    """
    # One process imports torch, for all that are forked from it; it has computed nothing, so it has no threads.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed", "projector.model", "projector.parallel.distributed"])
    heard: Queue[tuple[int, Any, str]] = context.Queue()
    ranks = range(count)
    started = [
        context.Process(target=_take_part, args=(rank, count, folder / "store", heard, work, arguments), daemon=True)
        for rank in ranks
    ]
    for process in started:
        process.start()
    try:
        rank = None
        while rank != 0:
            rank, result, raised = _heard(heard, started)
            if raised:
                raise RuntimeError(raised)
    finally:
        for process in started:
            process.kill()
            process.join()
    return result


def shared(model: Model, workers: Workers) -> Model:
    """Return the model with its graph divided among workers."""
    live_graph = model._held.live_graph.shared_by(workers)
    if workers.rank:
        return model
    held = replace(model._held, live_graph=live_graph, training_rows=TrainingRows.of(live_graph))
    return Model(held, model._exponents)


def _heard(heard: "Queue[tuple[int, Any, str]]", started: list[Any]) -> tuple[int, Any, str]:
    while True:
        try:
            return heard.get(timeout=1.0)
        except queue.Empty:
            if not any(process.is_alive() for process in started):
                raise RuntimeError("The workers ended without a word.") from None


def _take_part(
    rank: int, count: int, store: Path, heard: "Queue[Any]", work: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=count, timeout=timedelta(seconds=TIMEOUT_S)
        )
        heard.put((rank, work(Distributed(TIMEOUT_S), *arguments), ""))
    except Exception:  # noqa: BLE001 - whoever waits raises it
        heard.put((rank, None, traceback.format_exc()))
