"""Test accuracy of the linear model, trained as by Lethe and as in the paper, and of nonlinear networks.

A seed draws the split if a dataset has none, the order in which validation nodes judge adaptive diffusion, the public
nodes for the MLP, and the MLP's start. "10 % public" means that the MLP was trained on a tenth of the training nodes,
and the model on the MLP's output for all of them.
"""

import time
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.baselines.catalogue import METHODS
from benchmarks.baselines.protocol import accuracy
from benchmarks.baselines.saint_walks import WalkedNetwork
from benchmarks.baselines.shadow import shadow_accuracy
from benchmarks.paper.label_inputs import DIFFUSED, LABEL_INPUTS, REUSING, label_inputs_accuracy
from benchmarks.paper.units import Cases, Unit
from model_store.build import build_model
from projector import ModelSpec
from projector.graph.graph import Features, Graph
from projector.network.spec import Combine, LossKind, SolverKind
from projector.training.fit import train
from projector.training.scaling import well_scaled


@dataclass(frozen=True)
class Variant:
    """A model, and the share of the training nodes that is public for its MLP."""

    spec: ModelSpec
    public: float = 0.0


_PLAIN = ModelSpec(combine=Combine.CONCAT)
_MLP = replace(_PLAIN, mlp_width=256)
#: The paper's appendix ("Model configuration"), without its sampler: descent with momentum 0.9 and full batches.
_AS_PRINTED = ModelSpec(
    combine=Combine.CONCAT, loss=LossKind.OVR, label_hops=2, regularization=1e-6, solver=SolverKind.SGD, momentum=0.9
)
#: L = 3. The paper needs a sampler to make it affordable; measured here without one too.
_DEEP = ModelSpec(combine=Combine.CONCAT, loss=LossKind.OVR, hops=3)
SHADOW = "linear, L = 3, ShaDow, 20 neighbours, 3 draws"
#: GraphSAINT as the paper runs it.
WALKS = "sage, three layers, graphsaint's random walks"
#: The paper's Table 2 combines both extensions.
DIFFUSED_MLP = "+ diffusion + MLP, 50 % public"
VARIANTS = {
    "linear": Variant(_PLAIN),
    "+ label reuse": Variant(REUSING),
    "+ diffusion": Variant(DIFFUSED),
    "+ diffusion + label reuse": Variant(replace(DIFFUSED, label_hops=2)),
    "+ MLP, 10 % public": Variant(_MLP, public=0.1),
    "+ MLP, 50 % public": Variant(_MLP, public=0.5),
    DIFFUSED_MLP: Variant(replace(_MLP, diffusion=True), public=0.5),
    "linear, L = 3": Variant(_DEEP),
    **{
        f"the paper's settings, learning rate {rate:g}": Variant(replace(_AS_PRINTED, learning_rate=rate))
        for rate in (0.1, 1.0)
    },
}


def accuracies(graph: Graph, unit: Unit) -> Cases:
    """Yield the test accuracy of one model, fully trained on the whole graph."""
    began = time.process_time()
    if unit.method == SHADOW:
        found = shadow_accuracy(graph, _DEEP.hops, _DEEP.regularization, unit.seed)
    elif unit.method in LABEL_INPUTS:
        found = label_inputs_accuracy(graph, unit.method, unit.seed)
    elif unit.method in VARIANTS:
        features = well_scaled(graph.features, np.ones(graph.nodes, dtype=np.bool_)).features
        found = variant_accuracy(graph, VARIANTS[unit.method], unit.seed, features)
    else:
        network = WalkedNetwork(seed=unit.seed) if unit.method == WALKS else METHODS[unit.method](_DEEP, unit.seed)
        found = accuracy(network.fit(graph).predict(), graph, graph.test_mask)
    yield "all", {"accuracy": found, "seconds": time.process_time() - began}


def variant_accuracy(graph: Graph, variant: Variant, seed: int, features: Features) -> float:
    """Return the test accuracy of a model trained as `build_model` does.

    `features` are those of `graph`, well scaled.
    """
    spec = replace(variant.spec, seed=seed)
    if spec.mlp_width:
        training = np.flatnonzero(graph.train_mask)
        random = np.random.default_rng(seed)
        public = random.choice(training, int(variant.public * training.size), replace=False)
        declared = [graph.node_ids[row] for row in public]
        found = build_model(graph, spec, name="a", dataset="a", split="full", public=declared).manifest.accuracy.test
        assert found is not None
        return found
    logits = train(spec, replace(graph, features=features)).logits
    right = logits.argmax(dim=1).numpy() == graph.labels
    return float(right[graph.test_mask].mean())
