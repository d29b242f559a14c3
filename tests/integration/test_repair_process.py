"""The process that repairs are left to, as the running service has it."""

import time
from collections.abc import Callable

import numpy as np
import psutil
from lethe_process import LetheProcess
from repair_world import retrained
from trained_models import Models

#: Sparse features, so that no factor of the Hessian is worth making, and weights enough.
CITATIONS = "synthetic:n=300,d=600,classes=4,seed=3"


def test_repairs_go_on_without_it_when_it_is_killed_and_it_ends_with_the_service(
    models: Models, serve: Callable[..., LetheProcess]
) -> None:
    trained = models.trained(CITATIONS)
    lethe = serve(trained, repair="always")
    first = only_child(lethe)
    assert lethe.delete(["1", "2"]).repair == "converged"
    first.kill()
    deadline = time.monotonic() + 30
    while first.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
    answered = lethe.delete(["3"])
    assert (answered.guarantee, answered.repair) == ("retrained", "converged")
    assert "The process for repairs ended with status -9" in lethe.log()
    assert lethe.delete(["4"]).repair == "converged"
    W = retrained(trained, nodes=["1", "2", "3", "4"])
    assert np.linalg.norm(lethe.weights() - W) <= 2e-8 * np.linalg.norm(W)
    second = only_child(lethe)
    assert second.pid != first.pid
    assert lethe.stop().status == 0
    assert not second.is_running()


def only_child(lethe: LetheProcess) -> psutil.Process:
    """The process beside the service, which has servers from elsewhere."""
    [child] = psutil.Process(lethe.pid).children()
    return child
