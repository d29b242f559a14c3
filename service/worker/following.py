"""A worker that follows the unlearner: it reads the model's folder, and has neither a database nor keys."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog
import torch

# All that workers carry out together has to be known here by its name.
import projector.forgetting.update  # noqa: F401
from projector.errors import ProjectorError, WorkersLost
from projector.parallel.meeting import Visit
from service.settings import Settings
from service.unlearning.placement import chosen_device
from service.worker.meeting_place import MeetingPlace, use_interface_of
from service.worker.shared_graph import Task, load

#: Seconds until it looks again for the unlearner.
_AGAIN_S = 0.2

_log = structlog.get_logger(__name__)


def follow(settings: Settings, notify_ready: Callable[[], None]) -> None:
    """Takes part in one session of the unlearner after another, until a signal ends it.

    Raises WorkersDiffer and what `load` raises: the folder of the model is not that of the unlearner's, or damaged.
    """
    place, device = MeetingPlace.of(settings), chosen_device(settings.device)
    if device.type == "cuda":
        # As torchrun tells it, and the supervisor: which of this host's workers this is.
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    notify_ready()
    _log.info("worker.waiting", address=place.address, port=place.port)
    while True:
        try:
            _take_part(place, settings.model_dir, device)
        except WorkersLost as lost:
            _log.warning("workers.lost", reason=lost.detail)
        time.sleep(_AGAIN_S)


def _take_part(place: MeetingPlace, model: Path, device: torch.device) -> None:
    try:
        visit = Visit(place.address, place.port, place.timeout_s)
    except OSError:
        return  # the unlearner is not there, or not yet
    task = msgspec.json.decode(visit.task(), type=Task)
    _log.info("model.loading", version=task.folder)
    rank, graph = None, None
    try:
        graph, digest = load(model, task, device)
    except (ProjectorError, OSError):
        if not visit.settled:
            raise
        # The unlearner has gone on without this one, and changed what it read.
    else:
        rank = visit.take_part(digest)
    if graph is None or rank is None:
        # Outside the clause above, whose error holds what was read until then.
        del graph
        visit.stay()
        return
    use_interface_of(visit.address)
    with visit.group(rank, device) as workers:
        graph.shared_by(workers)
        # From here on `workers` says how long anything of it is held.
        del graph
        _log.info("worker.following", worker=rank, workers=workers.count)
        workers.follow()
