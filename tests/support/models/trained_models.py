"""Models for tests that run Lethe as a process, each trained once a session."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from model_store.datasets.load import default_data_dirs, load_dataset
from projector.forgetting.injection import inject_channel
from projector.graph.graph import Graph
from service.cli.main import main
from tests.support.models.recomputation import Recomputation

#: Some of its 150 words occur in one node alone, so that deletions lose directions.
SMALL = "synthetic:n=400,d=150,classes=4,seed=3"


class Models:
    """Trained model folders, each trained once by `lethe train`; tests serve copies."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[tuple[str, int, int], Path] = {}

    def graph(self, dataset: str) -> Graph:
        """Load the dataset as training does."""
        return load_dataset(dataset, data_dirs=default_data_dirs(os.environ))

    def trained(self, dataset: str, channel: Sequence[str] = (), *, cohorts: int = 0) -> Path:
        """Return a model's folder; `channel` names the feature injection test's nodes, `cohorts` adds canaries."""
        key = (dataset, len(channel), cohorts)
        if key not in self._made:
            out = self._folder / str(len(self._made))
            flags = ["--dataset", dataset, "--out", str(out), "--device", "cpu"]
            if channel:
                file = self._folder / f"{len(self._made)}.ids"
                file.write_text("\n".join(channel) + "\n")
                flags += ["--inject-channel", str(file), "--inject-class"]
            if cohorts:
                flags += ["--canaries", str(cohorts)]
            with pytest.raises(SystemExit) as ended:
                main(["train", *flags])
            assert not ended.value.code
            self._made[key] = out
        return self._made[key]

    def recomputation(self, dataset: str, channel: Sequence[str] = ()) -> Recomputation:
        """Return the recomputation of the same model."""
        graph = self.graph(dataset)
        if channel:
            graph = inject_channel(graph, channel, extra_class=True)
        return Recomputation(self.trained(dataset, channel), graph)


def training_nodes(graph: Graph, share: float, seed: int) -> list[str]:
    """Draw a random share of the training nodes."""
    training = np.flatnonzero(graph.train_mask)
    chosen = np.random.default_rng(seed).choice(training, size=int(len(training) * share), replace=False)
    return [graph.node_ids[row] for row in chosen]
