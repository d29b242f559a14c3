"""A model of every configuration, its removals, and its oracle."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from model_store.build import BuiltModel, build_model
from model_store.datasets.load import load_dataset
from projector.forgetting.batch import Removal
from projector.forgetting.injection import add_canaries
from projector.graph.graph import Features, Graph
from tests.support.mathematics.configurations import Configuration
from tests.support.mathematics.oracle import Oracle, Side
from tests.support.models.small_graphs import dense

NODES = 48
COHORTS = 2


def graph_for(configuration: Configuration) -> Graph:
    graph = load_dataset(f"synthetic:n={NODES},d=20,classes=3,seed=5", data_dirs=[])
    if configuration.layout == "dense":
        return replace(graph, features=dense(graph.features))
    return graph


def build(configuration: Configuration) -> BuiltModel:
    graph, canaries = add_canaries(graph_for(configuration), COHORTS, nodes=2, seed=0, tag="t")
    public = [graph.node_ids[row] for row in np.flatnonzero(graph.train_mask)[:10]] if configuration.mlp else []
    return build_model(
        graph, configuration.spec, name="matrix", dataset="synthetic", split="full", public=public, canaries=canaries
    )


def side_of(X: Features, W: NDArray[np.float64], beta: NDArray[np.float64], rank_cutoff: float) -> Side:
    return Side(dense(X), W.copy(), beta.copy(), np.ones(X.shape[0], dtype=np.bool_), rank_cutoff)


def oracle_of(model: BuiltModel) -> Oracle:
    graph, manifest = model.graph, model.manifest
    features = side_of(graph.features, model.weights, model.beta, 1e-5 * float(np.sqrt(manifest.sigma_ref_squared)))
    labels = None
    if manifest.spec.label_hops:
        Y = np.zeros((graph.nodes, graph.num_classes))
        training = np.flatnonzero(graph.train_mask)
        Y[training, graph.labels[training]] = 1.0
        labels = side_of(Y, model.label_weights, model.label_beta, 1e-3)
        labels.in_span = graph.train_mask.copy()
    sigmas = None if manifest.diffusion is None else (manifest.diffusion.sigma_h, manifest.diffusion.sigma_z)
    adjacency = graph.adjacency.toarray()
    temperature = manifest.temperature or 0.2
    return Oracle(manifest.spec, adjacency, graph.labels, graph.train_mask, features, labels, sigmas, temperature)


def removals_of(
    configuration: Configuration, oracle: Oracle, rng: np.random.Generator, deletable: NDArray[np.bool_]
) -> list[Removal]:
    """Draw one request of each kind on remaining data, without overlap."""
    free = rng.permutation(np.flatnonzero(oracle.live & oracle.features.in_span & deletable))
    removals = []
    for kind in configuration.kinds:
        if kind == "edge":
            upper = np.triu(oracle.adjacency * np.outer(oracle.live, oracle.live), 1)
            upper[free[:8]] = upper[:, free[:8]] = 0.0
            edges = np.argwhere(upper)
            if len(edges):
                chosen = edges[rng.permutation(len(edges))[:3]]
                removals.append(Removal(edges=chosen.astype(np.int64)))
            continue
        size = int(rng.integers(1, 5))
        removals.append(of_kind(kind, free[:size]))
        free = free[size:]
    return removals


def of_kind(kind: str, rows: NDArray[np.int64]) -> Removal:
    return Removal(features=rows) if kind == "features" else Removal(nodes=rows)
