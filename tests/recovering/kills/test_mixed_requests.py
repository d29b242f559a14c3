"""Requests of all kinds from several clients, while every part of a Lethe is killed and stopped: each happens once.

Cora and Pubmed take an hour and more. `python -m tests.support.kills.mixed.mixed_run --help` runs one of another size.
"""

import os
from pathlib import Path

import pytest

from model_store.datasets.load import default_data_dirs, load_dataset
from tests.support.kills.faults import SEED
from tests.support.kills.mixed.mixed_run import Effort, MixedRun, served
from tests.support.preloaded import Preloaded


@pytest.mark.slow
@pytest.mark.timeout(4 * 3_600)
@pytest.mark.parametrize(
    ("dataset", "effort"),
    [
        ("synthetic:n=200,d=24,classes=3,seed=5", Effort(requests=40, kills=2, clients=2, seed=SEED)),
        ("cora", Effort(seed=SEED)),
        ("pubmed", Effort(seed=SEED)),
    ],
    ids=["small", "cora", "pubmed"],
)
def test_each_request_of_a_mixed_stream_happens_once_whatever_is_killed_or_stopped(
    dataset: str, effort: Effort, preloaded: Preloaded, tmp_path: Path
) -> None:
    graph = load_dataset(dataset, data_dirs=default_data_dirs(os.environ))
    template = served(graph, dataset, preloaded, tmp_path)
    MixedRun(graph, template, preloaded, tmp_path, effort).run()
