"""What is told of a model besides its predictions: of each import, and of each version."""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from projector.forgetting.canaries import Canaries
from service.publication.checksums import Checksums

#: Of a publication: whoever finds another number was made by another version of Lethe.
FORMAT = 3


@dataclass(frozen=True)
class ModelFacts:
    """What stays the same from one import to the next."""

    name: str
    #: Rows of the graph at training, deleted ones as well.
    nodes: int
    #: Columns of the features.
    features: int
    classes: tuple[str, ...]
    hops: int
    combine: str
    propagation: str
    loss: str
    #: lambda.
    regularization: float
    #: Of the features at training.
    condition_number: float
    #: Shares of nodes predicted rightly at training: `train`, `val`, `test`.
    accuracy: Mapping[str, float | None] | None = None
    #: Of real-valued targets, the figures of `model_store.manifest.Fit`; None for classes.
    regression: Mapping[str, float | None] | None = None


@dataclass(frozen=True)
class NoiseFacts:
    """How a version is published with noise, and how much of what was promised is used."""

    epsilon: float
    delta: float
    #: K, and of how many of them the share stands that is used.
    planned: int
    used: float
    #: Of this version alone.
    mu: float
    #: Standard deviation of the noise in each weight.
    sigma: float


@dataclass(frozen=True)
class VersionFacts:
    """What each version has anew."""

    version: int
    live_nodes: int
    #: Edges between live nodes.
    edges: int
    #: Of the live nodes' features.
    rank: int
    #: Bound on the distance of W to retraining; None for a loss that no certificate exists for, and of weights that are
    #: published with noise.
    distance_bound: float | None
    #: The same, relative to |W|; None too for W = 0.
    distance_bound_relative: float | None
    #: Where it was computed.
    device: str
    #: None where it is published as it is.
    noise: NoiseFacts | None = None


@dataclass(frozen=True)
class Facts:
    """What a reader tells of the version it serves, all of one moment."""

    model: ModelFacts
    served: VersionFacts


class Hashing(msgspec.Struct, frozen=True):
    """How entries are spread over a table of `index`."""

    #: How many places a hash can name; a few more follow them.
    named: int
    #: Where the hash begins.
    key: int


class ModelManifest(msgspec.Struct, frozen=True, tag_field="format", tag=FORMAT):
    """What is written beside the files of an import."""

    facts: ModelFacts
    canaries: Canaries | None
    ids: Hashing
    edges: Hashing
    #: Bytes of each file.
    sizes: Mapping[str, int]


class VersionManifest(msgspec.Struct, frozen=True, tag_field="format", tag=FORMAT):
    """What is written beside the files of a version."""

    facts: VersionFacts
    checksums: Checksums
