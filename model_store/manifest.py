"""The manifest of a model: its definition, training data and quality; fixed at creation."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from model_store.disk.checksummed import wrong
from projector.errors import TrainingError
from projector.forgetting.canaries import PREFIX, Canaries
from projector.graph.columns import Column, ColumnKind
from projector.graph.node_ids import RULE, is_allowed
from projector.network.diffusion import Diffusion
from projector.network.spec import ClassWeight, LossKind, ModelSpec, check_spec
from projector.training.mlp import MlpRecord

#: A SHA-256 in hex.
SHA256 = re.compile("[0-9a-f]{64}")
#: Largest exponent of two in double precision, in either direction.
_MOST_SCALE = 1022


class FeatureLayout(StrEnum):
    """Layout of the features, on disk and in memory."""

    DENSE = "dense"
    CSR = "csr"


class FeatureDtype(StrEnum):
    """The type of one feature, as in the dataset."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"


@dataclass(frozen=True)
class InjectedChannel:
    """A physical binary column added for the feature injection test."""

    #: Its feature column.
    column: int
    #: Number of nodes that had it at training.
    nodes: int


@dataclass(frozen=True)
class Encoder:
    """A model that computed the features. It is not part of this one, and deletions do not change it."""

    #: As the operator named it.
    name: str
    #: SHA-256 of its file, in hex; None if not given.
    sha256: str | None = None

    def __str__(self) -> str:
        return self.name if self.sha256 is None else f"{self.name} (SHA-256 {self.sha256})"


@dataclass(frozen=True)
class Accuracy:
    """Shares of correctly predicted nodes at training, in [0, 1]; None for an empty mask."""

    train: float | None
    val: float | None
    test: float | None


@dataclass(frozen=True)
class Fit:
    """Quality of predicting real-valued targets at training, over all of them together; None for an empty mask."""

    #: 1 - |Y - Z|^2 / |Y - mean|^2, with each target's mean over the same nodes; None without variation.
    r_squared_train: float | None
    r_squared_val: float | None
    r_squared_test: float | None
    #: Mean of (y - z)^2 over nodes and targets.
    squared_error_train: float | None
    squared_error_val: float | None
    squared_error_test: float | None


@dataclass(frozen=True)
class TrainingRecord:
    """Figures of training the weights."""

    #: |grad|_F / lambda / |W|_F at the end.
    relative_gradient: float
    #: |W - H^T U|_F / |W|_F.
    identity_error: float
    iterations: int
    seconds: float
    device: str


@dataclass(frozen=True)
class Manifest:
    """The description of a model. Its quantities are those at import; deletions do not change them."""

    name: str
    #: With its offset from UTC.
    created_at: datetime
    #: The dataset's name or path, and its split (`full` or `public`).
    dataset: str
    split: str
    spec: ModelSpec
    nodes: int
    #: Undirected edges.
    edges: int
    #: Number of feature columns, d.
    features: int
    feature_layout: FeatureLayout
    feature_dtype: FeatureDtype
    #: Names of classes, or of real-valued targets.
    classes: tuple[str, ...]
    #: Rank of the features' Gram matrix, and the basis of that decision.
    rank: int
    sigma_ref_squared: float
    rank_tolerance: float
    condition_number: float
    #: Without figures for real-valued targets.
    accuracy: Accuracy
    training: TrainingRecord
    #: None without adaptive diffusion.
    diffusion: Diffusion | None = None
    #: Temperature from squared-loss scores to probabilities, fitted on validation nodes; None without these, and for
    #: other losses.
    temperature: float | None = None
    #: None for classes.
    regression: Fit | None = None
    #: Column j of the features was multiplied by 2**column_scale[j]; None if nothing was rescaled.
    column_scale: tuple[int, ...] | None = None
    injected_channels: tuple[InjectedChannel, ...] = ()
    #: Columns of the table that the dataset's features come from, in the order of the first feature columns; None if
    #: they have no names. Names of categories stay when the nodes that had them are deleted.
    columns: tuple[Column, ...] | None = None
    #: None if trained without canaries.
    canaries: Canaries | None = None
    #: None if the features are the dataset's own.
    mlp: MlpRecord | None = None
    #: The model that computed the dataset's features; None if the operator named none.
    encoder: Encoder | None = None
    #: Messages for the operator.
    warnings: tuple[str, ...] = ()

    @property
    def injected_columns(self) -> tuple[int, ...]:
        """Feature columns added to the dataset's: injected channels, then canaries."""
        return injected_columns(self.injected_channels, self.canaries)

    @property
    def frozen_parts(self) -> tuple[str, ...]:
        """Return in words the parts that deletions leave as training fixed them, and that `retrained` depends on."""
        parts = []
        if self.encoder is not None:
            parts.append(f"the encoder {self.encoder}, which computed the features")
        if self.diffusion is not None:
            parts.append("the sigmas of the diffusion, learned while the deleted data was still in the graph")
        if self.temperature is not None:
            parts.append(
                "the temperature of the probabilities, fitted on validation nodes, including those deleted since"
            )
        if self.mlp is not None:
            parts.append("the MLP that computes the features, trained only on public nodes")
        if self.spec.class_weights:
            parts.append("the weights of the classes in the loss, counted while the deleted data was still included")
        if self.column_scale is not None:
            parts.append(
                "the scales of the feature columns, fixed at the import, when the deleted data was still included"
            )
        return tuple(parts)

    def check(self, source: Path) -> None:
        """Raise NotAStore, naming the file `source` and the field, for inconsistent values."""
        try:
            check_spec(self.spec)
        except TrainingError as error:
            raise wrong(source, "spec", "settings of a model", error.detail) from error
        held, squared = self.canaries, self.spec.loss is LossKind.SQUARED
        expected = {
            "name": (is_allowed(self.name), RULE, self.name),
            "nodes": (self.nodes >= 1, "at least 1", self.nodes),
            "features": (self.features >= 1, "at least 1", self.features),
            "classes": (
                len(set(self.classes)) == len(self.classes) > (self.regression is None)
                and all(map(is_allowed, self.classes)),
                "names",
                self.classes,
            ),
            "rank": (self.rank <= self.features, f"at most {self.features}", self.rank),
            "sigma_ref_squared": (self.sigma_ref_squared >= 0, "at least 0", self.sigma_ref_squared),
            "rank_tolerance": (0 <= self.rank_tolerance < 1, "at least 0 and below 1", self.rank_tolerance),
            "diffusion": ((self.diffusion is not None) == self.spec.diffusion, "as `spec` has it", self.diffusion),
            "temperature": (
                self.temperature is None or (squared and self.regression is None and 0 < self.temperature < math.inf),
                "more than 0, and only for classes with the squared loss",
                self.temperature,
            ),
            "regression": (
                self.regression is None
                or (squared and not (self.spec.label_hops or self.spec.diffusion or self.spec.mlp_width)),
                "only for the squared loss without label reuse, diffusion and MLP",
                self.regression,
            ),
            "mlp": ((self.mlp is not None) == (self.spec.mlp_width > 0), "as `spec` has it", self.mlp),
            "class_weights": (
                len(self.spec.class_weights) in (0, len(self.classes))
                and bool(self.spec.class_weights) == (self.spec.class_weight is not ClassWeight.NONE)
                and not (self.spec.class_weights and self.regression),
                "one for each class, if `class_weight` asks for them",
                self.spec.class_weights,
            ),
            "encoder": (
                self.encoder is None
                or (
                    is_allowed(self.encoder.name)
                    and (self.encoder.sha256 is None or SHA256.fullmatch(self.encoder.sha256) is not None)
                ),
                "a name, and 64 hexadecimal digits",
                self.encoder,
            ),
            "column_scale": (
                self.column_scale is None
                or (len(self.column_scale) == self.features and all(abs(e) <= _MOST_SCALE for e in self.column_scale)),
                f"{self.features} exponents of at most {_MOST_SCALE} in size",
                self.column_scale,
            ),
            "injected_channels": (
                all(one.column < self.features for one in self.injected_channels),
                f"columns below {self.features}",
                self.injected_channels,
            ),
            "columns": (
                self.columns is None or _fit_together(self.columns, self.features),
                f"columns of a table that fill at most {self.features}",
                self.columns,
            ),
            "canaries": (
                held is None
                or (
                    0 < held.cohorts * held.nodes <= self.nodes
                    and held.first_column + held.cohorts <= self.features
                    and is_allowed(f"{PREFIX}{held.tag}-{held.cohorts}-{held.nodes}")
                ),
                "cohorts of these nodes and features",
                held,
            ),
        }
        for name, (holds, allowed, value) in expected.items():
            if not holds:
                raise wrong(source, name, allowed, value)


def injected_columns(channels: Iterable[InjectedChannel], canaries: Canaries | None) -> tuple[int, ...]:
    """Return the feature columns of injected channels, followed by those of canaries."""
    return (*(channel.column for channel in channels), *(() if canaries is None else canaries.columns))


def _fit_together(columns: tuple[Column, ...], features: int) -> bool:
    widths = all(
        column.width == (len(column.categories) if column.kind is ColumnKind.CATEGORY else max(column.width, 1))
        and (column.kind is not ColumnKind.NUMBER or column.width == 1)
        for column in columns
    )
    names = {column.name for column in columns}
    return widths and len(names) == len(columns) and sum(column.width for column in columns) <= features
