"""Test accuracy of the linear model as Lethe, and as the paper, trains it, and of networks that are not linear."""

import time
from dataclasses import replace

import numpy as np

from benchmarks.baselines.catalogue import METHODS
from benchmarks.baselines.protocol import accuracy
from benchmarks.baselines.shadow import shadow_accuracy
from benchmarks.paper.accuracy import VARIANTS as BASIC
from benchmarks.paper.accuracy import Variant, accuracy_by_all_labels_but_test
from benchmarks.paper.accuracy import accuracy as variant_accuracy
from benchmarks.paper.units import Cases, Unit
from projector import ModelSpec
from projector.graph.graph import Graph
from projector.network.spec import Combine, LossKind, SolverKind
from projector.training.scaling import well_scaled

#: The paper's appendix ("Model configuration"), without its sampler: descent with momentum 0.9 and full batches.
_AS_PRINTED = ModelSpec(
    combine=Combine.CONCAT, loss=LossKind.OVR, label_hops=2, regularization=1e-6, solver=SolverKind.SGD, momentum=0.9
)
#: L = 3, in the paper with a sampler that was to make it affordable, here also without.
_DEEP = ModelSpec(combine=Combine.CONCAT, loss=LossKind.OVR, hops=3)
SHADOW = "linear, L = 3, ShaDow's sampler"
#: The paper's z^(0) of adaptive diffusion; ours knows the labels of training nodes alone.
ALL_LABELS = "+ diffusion, z0 = y of all but test nodes"
#: The paper's Table 2 has both extensions together.
DIFFUSED_MLP = "+ diffusion + MLP, 50 % public"
_MLP = BASIC["+ MLP, 50 % public"]
VARIANTS = {
    **BASIC,
    DIFFUSED_MLP: replace(_MLP, spec=replace(_MLP.spec, diffusion=True)),
    "linear, L = 3": Variant(_DEEP),
    **{
        f"the paper's settings, learning rate {rate:g}": Variant(replace(_AS_PRINTED, learning_rate=rate))
        for rate in (0.1, 1.0)
    },
}


def accuracies(graph: Graph, unit: Unit) -> Cases:
    """Share of test nodes that one model classifies rightly, trained to its end on the whole graph."""
    began = time.process_time()
    if unit.method == SHADOW:
        found = shadow_accuracy(graph, _DEEP.hops, _DEEP.regularization, unit.seed)
    elif unit.method == ALL_LABELS:
        found = accuracy_by_all_labels_but_test(graph, unit.seed)
    elif unit.method in VARIANTS:
        features = well_scaled(graph.features, np.ones(graph.nodes, dtype=np.bool_)).features
        found = variant_accuracy(graph, VARIANTS[unit.method], unit.seed, features)
    else:
        found = accuracy(METHODS[unit.method](_DEEP, unit.seed).fit(graph).predict(), graph, graph.test_mask)
    yield "all", {"accuracy": found, "seconds": time.process_time() - began}
