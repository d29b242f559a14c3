"""A sweep over all hops gives the same result a few classes at a time, which takes less memory."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from projector.forgetting.coefficients import span_coefficients
from projector.graph.features import FeatureMatrix
from projector.network.inputs import Inputs, inputs_of
from projector.network.propagation import Propagator
from projector.network.representation import Representation
from projector.network.spec import Combine, ModelSpec

NODES, CLASSES = 9, 5


def inputs(combine: Combine, label_hops: int) -> Inputs:
    random = np.random.default_rng(0)
    edges = sp.csr_array(np.triu(random.random((NODES, NODES)) < 0.4, 1).astype(np.float64))
    propagator = Propagator.build(
        sp.csr_array(edges + edges.T), (spec := ModelSpec(combine=combine, label_hops=label_hops)).propagation, 1.0
    )
    labels = sp.csr_array(np.eye(CLASSES)[random.integers(CLASSES, size=NODES)])
    return inputs_of(spec, FeatureMatrix(random.normal(size=(NODES, 4))), labels, propagator)


@pytest.mark.parametrize("combine", list(Combine))
@pytest.mark.parametrize("label_hops", [0, 2])
@pytest.mark.parametrize("classes_at_a_time", [1, 2])
def test_logits_and_span_coefficients_by_parts_are_those_at_once(
    combine: Combine, label_hops: int, classes_at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = inputs(combine, label_hops)
    blocks = [each.operators.blocks for each in made]
    random = torch.Generator().manual_seed(0)
    W = [
        torch.randn(each.rows.num_features, count * CLASSES, generator=random, dtype=torch.float64)
        for each, count in zip(made, blocks, strict=True)
    ]
    representation = Representation(made, np.arange(0, NODES, 2))
    U = torch.randn(representation.rows, CLASSES, generator=random, dtype=torch.float64)
    logits, betas = made.logits(W), span_coefficients(representation, U)
    monkeypatch.setattr("projector.network.inputs.SWEEP_BYTES", 8 * NODES * sum(blocks) * classes_at_a_time)
    monkeypatch.setattr("projector.device.SELDOM_BYTES", 1)
    torch.testing.assert_close(made.logits(W), logits, rtol=1e-13, atol=1e-13)
    for found, expected in zip(span_coefficients(representation, U), betas, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)
    # W_b = X^T beta_b are the blocks of H^T U.
    explained = [each.transposed_matmul(block) for each, beta in zip(made, betas, strict=True) for block in beta]
    torch.testing.assert_close(torch.cat(explained), representation.transposed(U), rtol=1e-12, atol=1e-12)
