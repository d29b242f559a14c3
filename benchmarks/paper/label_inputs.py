"""Test accuracy of models that read labels as the paper or its code does, where Lethe does not.

* `ALL_LABELS`: the paper's z^(0) of adaptive diffusion has the labels of all but test nodes; Lethe's has those of
  training nodes alone.
* `Z_BLOCKS`: the paper predicts from [H^(1), Z^(1), …, H^(L), Z^(L)]; Lethe's diffusion has no Z blocks. Block l is
  (R_l - diag R_l) Y with R_l = G_{l-1} … G_0. The paper's code, too, sets a node's own label to zero in its own graph.
* `OWN_LABELS`: Z^(l) = R_l Y as the paper prints it. A training node's row then holds the label to be predicted, and a
  test node's does not.
* `SECOND_PASS`: the paper's code predicts twice with the same weights (`evaluation_reuse_labels` of
  `exp1_graph_projector.py`). The classes predicted first are label inputs the second time. The code does this for test
  nodes, since it reads the labels of validation nodes; here for all but training nodes.

Labels are those of training nodes except in `ALL_LABELS`. The sigmas of diffusion are those that Lethe learns, and the
weights are fitted to training nodes. For Z blocks the sigmas are thus learned without them.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import scipy.sparse as sp
import torch

from benchmarks.baselines.protocol import Array, accuracy
from projector import ModelSpec
from projector.graph.features import FeatureMatrix
from projector.graph.graph import NO_LABEL, Graph, one_hot
from projector.network.blocks import side_by_side
from projector.network.diffusion import DiffusionHops
from projector.network.inputs import Input, Inputs, inputs_of, label_input
from projector.network.losses import loss_of
from projector.network.operators import FeatureHops
from projector.network.propagation import Propagator
from projector.network.representation import DenseRepresentation, Representation
from projector.network.spec import Combine
from projector.solvers.newton import minimise
from projector.solvers.objective import Objective
from projector.training.fit import train
from projector.training.scaling import well_scaled

ALL_LABELS = "+ diffusion, z0 = y of all but test nodes"
Z_BLOCKS = "+ diffusion, Z blocks"
OWN_LABELS = "+ diffusion, Z blocks with own labels"
SECOND_PASS = "+ label reuse, second pass"

DIFFUSED = ModelSpec(combine=Combine.CONCAT, diffusion=True)
REUSING = ModelSpec(combine=Combine.CONCAT, label_hops=2)


def all_labels_logits(graph: Graph, seed: int) -> Array:
    """Return the logits (n, C) of adaptive diffusion with the paper's z^(0)."""
    spec = replace(DIFFUSED, seed=seed)
    labelled = ~graph.test_mask & (graph.labels != NO_LABEL)
    inputs = inputs_of(
        spec,
        FeatureMatrix(graph.features.astype(np.float64), torch.device("cpu")),
        one_hot(graph.labels, labelled, graph.num_classes),
        Propagator.build(graph.adjacency, spec.propagation, spec.self_loops),
        train(spec, graph).diffusion,
    )
    return _fitted(spec, graph, inputs)


def z_blocks_logits(graph: Graph, seed: int, *, own: bool) -> Array:
    """Return the logits (n, C) of adaptive diffusion with Z blocks. `own` leaves a node's label in its own row."""
    spec = replace(DIFFUSED, seed=seed)
    features = train(spec, graph).representation.inputs.features
    if not isinstance(features.operators, DiffusionHops):
        raise TypeError(f"{type(features.operators).__name__} is not adaptive diffusion")
    propagator = Propagator.build(graph.adjacency, spec.propagation, spec.self_loops)
    blocks = FeatureMatrix(z_blocks(features.operators, own=own), torch.device("cpu"))
    return _fitted(spec, graph, Inputs(features, Input(blocks, FeatureHops(propagator, (0,)))))


def z_blocks(hops: DiffusionHops, *, own: bool) -> Array:
    """Return Z^(1), …, Z^(L) side by side, (n, L C)."""
    Y, every = hops.labels.toarray(), np.arange(hops.labels.shape[0])
    reached, before, blocks = Y, None, []
    for hop in range(hops.block_hops[-1]):
        G = hops.step(hop, every, every)
        reached = G @ reached
        # diag(G B)_i = sum_j G_ij B_ji.
        weights = G.diagonal() if before is None else np.asarray(G.multiply(before.T).sum(axis=1)).ravel()
        blocks.append(reached if own else reached - weights[:, None] * Y)
        if hop + 1 < hops.block_hops[-1]:
            before = G if before is None else sp.csr_array(G @ before)
    return np.concatenate(blocks, axis=1)


def second_pass_logits(graph: Graph, seed: int) -> Array:
    """Return the logits (n, C) of label reuse when the classes predicted first are label inputs, too."""
    trained = train(replace(REUSING, seed=seed), graph)
    classes = np.where(graph.train_mask, graph.labels, trained.logits.argmax(dim=1).numpy())
    labels = one_hot(classes, np.ones(graph.nodes, dtype=np.bool_), graph.num_classes)
    propagator = Propagator.build(graph.adjacency, REUSING.propagation, REUSING.self_loops)
    inputs = Inputs(trained.representation.inputs.features, label_input(REUSING, labels, propagator))
    return inputs.logits([side_by_side(each) for each in (trained.weights, trained.label_weights)]).numpy()


def _fitted(spec: ModelSpec, graph: Graph, inputs: Inputs) -> Array:
    """Return the logits (n, C) of the weights that fit the training nodes."""
    rows = np.flatnonzero(graph.train_mask)
    representation = Representation(inputs, rows)
    labels = torch.from_numpy(graph.labels[rows])
    objective = Objective(DenseRepresentation(inputs, rows), loss_of(spec.loss), labels, spec.regularization)
    start = torch.zeros((representation.columns, graph.num_classes), dtype=torch.float64)
    W = minimise(objective, start, spec.tolerance, lambda *_: None).point.W
    return representation.all_logits(W).numpy()


_LOGITS: Mapping[str, Callable[[Graph, int], Array]] = {
    ALL_LABELS: all_labels_logits,
    Z_BLOCKS: lambda graph, seed: z_blocks_logits(graph, seed, own=False),
    OWN_LABELS: lambda graph, seed: z_blocks_logits(graph, seed, own=True),
    SECOND_PASS: second_pass_logits,
}
LABEL_INPUTS = tuple(_LOGITS)


def label_inputs_accuracy(graph: Graph, method: str, seed: int) -> float:
    """Return the test accuracy of one of `LABEL_INPUTS`."""
    features = well_scaled(graph.features, np.ones(graph.nodes, dtype=np.bool_)).features
    return accuracy(_LOGITS[method](replace(graph, features=features), seed), graph, graph.test_mask)
