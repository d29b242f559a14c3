"""A Lethe queried over HTTP before and after each deletion, with a key that receives all digits."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.baselines.protocol import Array, Nodes
from benchmarks.performance.service.lethe_process import KEY, LetheProcess
from lethe_client import LetheClient
from projector import ModelSpec
from service.domain.scopes import Scope
from service.settings import variable_name

_ROOT = Path(__file__).parents[2]
_AT_ONCE = 10_000
#: Every deletion is one version, repaired before it is served.
_REPAIR_S = 600
_PATIENCE_S = 900.0


@dataclass(frozen=True, eq=False)
class Deletion:
    """Answers of two consecutive versions, (n, C) each; zeros for nodes that were not queried."""

    #: The nodes deleted between them, (m,).
    nodes: Nodes
    before: Array
    after: Array


@contextmanager
def serving(
    home: Path, dataset: str, spec: ModelSpec, certify: str | None
) -> Iterator[tuple[LetheClient, LetheClient]]:
    """Serve a Lethe in `home`, trained on `dataset`. Yields two clients: one that may delete, and the observer's."""
    settings = {"LETHE_REPAIR_BUDGET": str(_REPAIR_S), "LETHE_DATASET": dataset}
    if certify is not None:
        settings[variable_name("certify")] = certify
    shape = ["--loss", spec.loss.value, "--hops", str(spec.hops), "--lambda", str(spec.regularization)]
    _command("train", "--dataset", dataset, "--out", str(home / "model"), *shape)
    lethe = LetheProcess(home, settings)
    try:
        scopes = [
            word for scope in (Scope.PREDICTIONS_READ, Scope.PREDICTIONS_EXACT) for word in ("--scope", scope.value)
        ]
        key = _command("keys", "create", "observer", *scopes, "--home", str(home)).strip()
        with (
            LetheClient(lethe.url, KEY, timeout_s=60.0) as deleting,
            LetheClient(lethe.url, key, timeout_s=60.0) as asking,
        ):
            yield deleting, asking
    finally:
        status = lethe.stop()
    if status:
        raise SystemExit(f"The service ended with status {status}.")


def observed(
    deleting: LetheClient, asking: LetheClient, ids: Sequence[str], asked: Nodes, targets: Sequence[Nodes]
) -> Iterator[Deletion]:
    """Delete `targets` one by one and query `asked` (a,) in between; `ids` are those of all nodes.

    Raises SystemExit if a deletion does not end with the weights of retraining.
    """
    before = _answers(asking, ids, asked)
    for nodes in targets:
        accepted = deleting.request_deletion([ids[node] for node in nodes])
        done = deleting.wait(accepted.id, timeout_s=_PATIENCE_S)
        if done.guarantee != "retrained":
            raise SystemExit(f"A deletion ended as {done.guarantee}.")
        after = _answers(asking, ids, asked)
        yield Deletion(nodes, before, after)
        before = after


def _answers(client: LetheClient, ids: Sequence[str], asked: Nodes) -> Array:
    found, versions = list[list[float]](), set[int]()
    for part in np.split(asked, range(_AT_ONCE, asked.size, _AT_ONCE)):
        answer = client.predict_many([ids[node] for node in part])
        versions.add(answer.model_version)
        found += [list(one.probabilities.values()) for one in answer.predictions]
    if len(versions) > 1 or len(found) != asked.size:
        raise SystemExit("The answers are not of all nodes by one version.")
    rows = np.array(found)
    answers = np.zeros((len(ids), rows.shape[1]))
    answers[asked] = rows
    return answers


def _command(*arguments: str) -> str:
    """Return the output of a `./lethe` command."""
    command = [sys.executable, "-P", "-m", "service.cli", *arguments]
    environment = os.environ | {"PYTHONPATH": str(_ROOT)}
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
