"""Build everything a store holds from a graph and a specification."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model_store.datasets.load import is_own
from model_store.manifest import (
    Accuracy,
    Encoder,
    FeatureDtype,
    FeatureLayout,
    Fit,
    InjectedChannel,
    Manifest,
    TrainingRecord,
    injected_columns,
)
from model_store.memory import require_memory, training_needs
from model_store.store import Store
from projector.device import torch_device
from projector.errors import GraphError, TrainingError
from projector.forgetting.canaries import PREFIX, Canaries
from projector.forgetting.injection import refuse_canary_ids
from projector.graph.graph import Graph, some, validate
from projector.graph.node_ids import RULE, is_allowed
from projector.network.sizes import Sizes
from projector.network.spec import ModelSpec, check_spec
from projector.solvers.objective import LARGEST_FLOOR
from projector.training.fit import Trained, TrainingProgress, check_targets
from projector.training.fitted import Fitted, fit_graph
from projector.training.mlp import MlpProgress, extract, public_nodes
from projector.training.pretrained import PretrainedWeights, WeightsError
from projector.training.scaling import CONDITION_LIMIT

#: How warnings about one training begin.
_OF_TRAINING = ("Training ", "Rounding ")
#: An epoch of the MLP, then the steps of the solver.
BuildProgress: TypeAlias = MlpProgress | TrainingProgress


@dataclass(frozen=True, eq=False)
class BuiltModel:
    """A trained model in memory."""

    manifest: Manifest
    #: The graph trained on. Its features are the MLP's outputs if there is one, with columns rescaled by
    #: `manifest.column_scale`.
    graph: Graph
    #: W, (blocks, d, C) float64.
    weights: NDArray[np.float64]
    #: U, (n_train, C) float64, with W = H^T U.
    dual: NDArray[np.float64]
    #: Span coefficients, (blocks, n, C) float64, with W_b = X^T beta_b.
    beta: NDArray[np.float64]
    #: The same for the label blocks: (label_hops, C, C), and (label_hops, n, C) with V_l = Y^T beta_l.
    label_weights: NDArray[np.float64]
    label_beta: NDArray[np.float64]
    #: Mask of public nodes, (n,), which are never deleted.
    public: NDArray[np.bool_]

    def write(self, path: Path) -> Store:
        """Write the model to the new folder `path`. Raises as `Store.create` does."""
        return Store.create(
            path,
            manifest=self.manifest,
            graph=self.graph,
            weights=self.weights,
            label_weights=self.label_weights,
            beta=self.beta,
            label_beta=self.label_beta,
            public=self.public,
        )


def build_model(
    graph: Graph,
    spec: ModelSpec,
    *,
    name: str,
    dataset: str,
    split: str,
    warnings: Sequence[str] = (),
    injected_channels: Sequence[InjectedChannel] = (),
    canaries: Canaries | None = None,
    public: Collection[str] = (),
    encoder: Encoder | None = None,
    device: str = "cpu",
    progress: Callable[[BuildProgress], None] | None = None,
    pretrained: PretrainedWeights | None = None,
) -> BuiltModel:
    """Rescale the features if their Gram matrix needs it, train, and compute span coefficients, on `device`.

    An MLP is trained first, on the CPU, on the nodes with ids in `public`. Everything else uses its outputs.

    The manifest records `dataset`, `split`, `warnings`, `encoder`, `injected_channels` and `canaries`; `inject_channel`
    and `add_canaries` have added the latter two to `graph`. Injected channels are never rescaled, so that a row of W
    can be compared with the sum of its coefficients. With `pretrained` weights, for the features of `graph`, training
    starts there and goes to the optimum, regardless of the named solver. They cannot be combined with an MLP trained
    here.

    Raises GraphError, TrainingError, DeviceError as `train` does, and DeviceError before any work if memory is too
    small. Raises RankError if the Gram matrix cannot determine the rank of the features, and WeightsError if
    `pretrained` does not belong to this graph and specification.
    """
    _check_name(name)
    validate(graph)
    refuse_canary_ids(graph, canaries)
    _check_classes(graph)
    check_spec(spec)
    check_targets(spec, graph)
    target = torch_device(device)
    require_memory("Training", training_needs(spec, Sizes.of(graph), target), target)
    declared = public_nodes(spec, graph, public)
    warnings = [*warnings]
    mlp = None
    if spec.mlp_width:
        _check_own_weights(pretrained)
        extracted = extract(graph, spec, declared, injected_columns(injected_channels, canaries), progress)
        graph, mlp = extracted.graph, extracted.record
        injected_channels, canaries = _moved(injected_channels, canaries, to=spec.mlp_width)
        warnings.extend(extracted.warnings)
    fitted = fit_graph(
        graph,
        spec,
        pretrained=pretrained,
        fixed=[channel.column for channel in injected_channels],
        device=device,
        progress=progress,
    )
    graph, spec, gram, trained = fitted.graph, fitted.spec, fitted.gram, fitted.trained
    if fitted.start is not None:
        warnings.append(_distance(fitted.start, trained))
    manifest = Manifest(
        name=name,
        created_at=datetime.now(UTC),
        dataset=dataset,
        split=split,
        spec=spec,
        nodes=graph.nodes,
        edges=graph.edges,
        features=graph.num_features,
        feature_layout=FeatureLayout.DENSE if isinstance(graph.features, np.ndarray) else FeatureLayout.CSR,
        feature_dtype=FeatureDtype(graph.features.dtype.name),
        classes=graph.class_names,
        rank=gram.rank,
        sigma_ref_squared=gram.sigma_ref_squared,
        rank_tolerance=gram.rank_tolerance,
        condition_number=gram.condition_number,
        accuracy=_accuracy(graph, trained),
        training=TrainingRecord(
            relative_gradient=trained.relative_gradient,
            identity_error=trained.identity_error,
            iterations=trained.iterations,
            seconds=trained.seconds,
            device=device,
        ),
        diffusion=trained.diffusion,
        temperature=fitted.temperature,
        regression=None if graph.values is None else _fit(graph, graph.values, trained),
        column_scale=None if fitted.exponents is None else tuple(fitted.exponents.tolist()),
        injected_channels=tuple(injected_channels),
        canaries=canaries,
        columns=None if graph.columns is None else graph.columns.columns,
        mlp=mlp,
        encoder=encoder,
        warnings=tuple(dict.fromkeys((*warnings, *_warnings(dataset, fitted)))),
    )
    return BuiltModel(
        manifest=manifest,
        graph=graph,
        weights=trained.weights.cpu().numpy(),
        dual=trained.dual.cpu().numpy(),
        beta=fitted.beta.cpu().numpy(),
        label_weights=trained.label_weights.cpu().numpy(),
        label_beta=fitted.label_beta.cpu().numpy(),
        public=declared,
    )


def lasting(warnings: Sequence[str]) -> list[str]:
    """Return a manifest's warnings about its dataset, not about one training."""
    return [warning for warning in warnings if not warning.startswith(_OF_TRAINING)]


def _moved(
    channels: Sequence[InjectedChannel], canaries: Canaries | None, *, to: int
) -> tuple[Sequence[InjectedChannel], Canaries | None]:
    """Return the same with columns renumbered from `to`, in the order of `injected_columns`."""
    moved = [replace(channel, column=to + place) for place, channel in enumerate(channels)]
    return moved, canaries and replace(canaries, first_column=to + len(moved))


def _check_name(name: str) -> None:
    if not is_allowed(name):
        raise TrainingError(f"{name!r} is not a valid name of a model.", f"Give a --name of {RULE}.")


def _check_own_weights(pretrained: PretrainedWeights | None) -> None:
    if pretrained is not None:
        raise WeightsError(
            "Weights from elsewhere do not fit an MLP that is trained here.",
            "Give the outputs of their MLP as the features, and train none here.",
        )


def _check_classes(graph: Graph) -> None:
    training = int(graph.train_mask.sum())
    if training < graph.num_classes:
        raise GraphError(
            f"There are more classes ({graph.num_classes}) than training nodes ({training}).",
            "Use a split with more training nodes, or merge classes.",
        )


def _distance(start: Tensor, trained: Trained) -> str:
    """Return how far training moved pretrained weights, for the operator."""
    parts = (trained.weights, trained.label_weights)
    W = torch.cat([part.reshape(-1, start.shape[1]) for part in parts])
    share = float(torch.linalg.norm(W - start)) / max(float(torch.linalg.norm(start)), np.finfo(np.float64).tiny)
    return f"Training here moved the given weights to the optimum, by {share:.1e} of their norm."


def _accuracy(graph: Graph, trained: Trained) -> Accuracy:
    """Return the accuracy without canaries, which say nothing about the dataset's nodes."""
    if graph.values is not None:
        return Accuracy(None, None, None)
    right = trained.logits.argmax(dim=1).cpu().numpy() == graph.labels
    real = ~graph.node_ids.beginning_with(PREFIX.encode())

    def share(mask: NDArray[np.bool_]) -> float | None:
        return float(right[mask & real].mean()) if (mask & real).any() else None

    return Accuracy(train=share(graph.train_mask), val=share(graph.val_mask), test=share(graph.test_mask))


def _fit(graph: Graph, values: NDArray[np.float64], trained: Trained) -> Fit:
    """Return the fit of real-valued targets `values` (n, C), without canaries."""
    predicted = trained.logits.cpu().numpy()
    real = ~graph.node_ids.beginning_with(PREFIX.encode())
    figures: dict[str, float | None] = {}
    for name, mask in (("train", graph.train_mask), ("val", graph.val_mask), ("test", graph.test_mask)):
        wanted, missed = values[mask & real], values[mask & real] - predicted[mask & real]
        spread = float(np.square(wanted - wanted.mean(axis=0)).sum()) if len(wanted) else 0.0
        figures[f"squared_error_{name}"] = float(np.square(missed).mean()) if len(wanted) else None
        figures[f"r_squared_{name}"] = 1 - float(np.square(missed).sum()) / spread if spread > 0 else None
    return Fit(**figures)


def _warnings(dataset: str, fitted: Fitted) -> list[str]:
    graph, gram, trained = fitted.graph, fitted.gram, fitted.trained
    warnings = []
    if gram.condition_number > CONDITION_LIMIT:
        warnings.append(
            f"The features' condition number is {gram.condition_number:.2g}, above {CONDITION_LIMIT:.0e}, even "
            "with rescaled columns: deletions are less exact."
        )
    if fitted.exponents is not None:
        warnings.append(
            "Feature columns were multiplied by powers of two to even out their sizes; lambda weighs them as rescaled."
        )
    if trained.relative_gradient > LARGEST_FLOOR:
        warnings.append(
            f"Training stopped away from the optimum (relative gradient {trained.relative_gradient:.1e}), so "
            "these weights are not those of every training run."
        )
    if fitted.too_large is not None:
        warnings.append(fitted.too_large)
    absent = np.setdiff1d(np.arange(graph.num_classes), graph.labels[graph.train_mask])
    if absent.size and graph.values is None:
        warnings.append(f"No training node has the class {some(graph.class_names[label] for label in absent)}.")
    if is_own(dataset) and all(name == str(row) or name.startswith(PREFIX) for row, name in enumerate(graph.node_ids)):
        warnings.append(
            "Row numbers are the ids of the nodes: when a row is removed, all later nodes change ids. Save "
            "node_ids with the dataset."
        )
    return warnings
