"""The weights of one version of a model in an `.npz`, and predictions with them on any graph."""

import json
import zipfile
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from projector.errors import GraphError, TrainingError
from projector.graph.features import FeatureMatrix
from projector.graph.from_data import from_arrays
from projector.graph.graph import check_adjacency
from projector.graph.raw_graph import NO_EDGES
from projector.network.blocks import side_by_side
from projector.network.losses import loss_of
from projector.network.operators import FeatureHops
from projector.network.propagation import Propagator
from projector.network.spec import ModelSpec, check_spec
from projector.training.pretrained import WeightsError

#: The arrays of the file: the weights, and everything else as JSON.
WEIGHTS, SETTINGS = "W", "settings"
_DAMAGE = (
    ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, EOFError, NotImplementedError,
    RuntimeError, zipfile.BadZipFile, zlib.error, TrainingError,
)  # fmt: skip
_REMEDY = "Write it again with `./lethe model export`."


@dataclass(frozen=True, eq=False)
class ExportedModel:
    """A version of a model with everything that predictions need, besides the graph. It forgets nothing."""

    #: W for the dataset's own features, (blocks, d, C) float64.
    weights: NDArray[np.float64]
    spec: ModelSpec
    #: Names of classes, or of real-valued targets.
    class_names: tuple[str, ...]
    real_valued: bool
    #: Temperature of the squared loss' probabilities; None for other losses, or if none was fitted.
    temperature: float | None
    name: str
    version: int

    def predict(
        self, features: Any, edge_index: ArrayLike = NO_EDGES, *, edge_weight: ArrayLike | None = None
    ) -> NDArray[np.float64]:
        """Return class probabilities, or real-valued targets, of all nodes of a graph, (n, C).

        `features` (n, d) are dense or scipy CSR, `edge_index` (2, E), with `edge_weight` (E,) if the model's graph has
        weights, or a scipy adjacency as in `from_arrays`. The predictions equal those of the service if the graph has
        the same live nodes. Raises GraphError.
        """
        nobody = np.zeros(np.shape(features)[0], dtype=np.int64)
        graph = from_arrays(edge_index, features, nobody, edge_weight=edge_weight)
        check_adjacency(graph)
        if graph.num_features != self.weights.shape[1]:
            raise GraphError(
                f"The features have {graph.num_features} columns, and the weights are for {self.weights.shape[1]}.",
                "Give the features of the dataset that the model was trained on.",
            )
        propagator = Propagator.build(graph.adjacency, self.spec.propagation, self.spec.self_loops)
        W = side_by_side(torch.from_numpy(np.ascontiguousarray(self.weights)))
        logits = FeatureHops(propagator, self.spec.block_hops).forward(FeatureMatrix(graph.features).matmul(W))
        loss = loss_of(self.spec.loss, real_valued=self.real_valued, temperature=self.temperature)
        return np.asarray(loss.probabilities(logits).numpy())

    def write(self, file: IO[bytes]) -> None:
        """Write it as an `.npz` of plain arrays."""
        settings = {
            "spec": asdict(self.spec),
            "classes": self.class_names,
            "real_valued": self.real_valued,
            "temperature": self.temperature,
            "name": self.name,
            "version": self.version,
        }
        np.savez_compressed(
            file, allow_pickle=False, **{WEIGHTS: self.weights, SETTINGS: np.array(json.dumps(settings))}
        )


def load_exported(path: str | Path) -> ExportedModel:
    """Return the model in a file of `./lethe model export`. Raises WeightsError for any other file."""
    try:
        with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            weights, settings = arrays[WEIGHTS], json.loads(str(arrays[SETTINGS]))
        chosen = settings["spec"] | {"class_weights": tuple(settings["spec"]["class_weights"])}
        spec = ModelSpec(**chosen)
        check_spec(spec)
        classes = tuple(map(str, settings["classes"]))
        expected = (len(spec.block_hops), weights.shape[1], len(classes))
        if weights.dtype != np.float64 or weights.shape != expected:
            raise ValueError(f"the weights are {weights.dtype} of shape {weights.shape}")
        temperature = None if settings["temperature"] is None else float(settings["temperature"])
        if temperature is not None and not 0 < temperature < np.inf:
            raise ValueError(f"the temperature is {temperature}")
        return ExportedModel(
            weights, spec, classes, bool(settings["real_valued"]), temperature,
            str(settings["name"]), int(settings["version"]),
        )  # fmt: skip
    except OSError as error:
        raise WeightsError(f"{path} cannot be read: {error.strerror}.", "Check the path.") from error
    except _DAMAGE as error:
        raise WeightsError(f"{path} is not an exported model: {error}.", _REMEDY) from error
