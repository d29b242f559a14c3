"""When products use the representation itself."""

from dataclasses import replace

import pytest

from projector.network.product_costs import keeps_dense, product_costs
from projector.network.sizes import Sizes
from projector.network.spec import Combine, ModelSpec

LAST = ModelSpec()
CONCAT = ModelSpec(combine=Combine.CONCAT)
LABELS = ModelSpec(combine=Combine.CONCAT, hops=3, label_hops=3)
CORA = Sizes(2_708, 5_278, 1_433, 7, training=1_208, stored_values=49_216, sparse=True)
PUBMED = Sizes(19_717, 44_324, 500, 3, training=18_217, stored_values=988_031, sparse=True)
PHOTO = Sizes(7_650, 119_081, 745, 8, training=4_590, stored_values=1_979_909, sparse=True)
COAUTHOR = Sizes(18_333, 81_894, 6_805, 15, training=11_000, stored_values=1_092_079, sparse=True)
SYNTHETIC = Sizes(60_000, 119_862, 128, 40, training=36_000, stored_values=899_318, sparse=True)
ARXIV = Sizes(169_343, 1_157_799, 128, 40, training=90_941, stored_values=169_343 * 128, sparse=False)


@pytest.mark.parametrize("spec", [LAST, CONCAT, LABELS, replace(CONCAT, diffusion=True)])
@pytest.mark.parametrize("sizes", [CORA, PUBMED, COAUTHOR])
def test_graphs_with_many_sparse_features_go_through_the_factors(sizes: Sizes, spec: ModelSpec) -> None:
    assert not keeps_dense(spec, sizes)


def test_dense_rows_of_features_go_through_h_itself_where_it_is_one_block_wide() -> None:
    assert keeps_dense(LAST, PHOTO)
    assert not keeps_dense(CONCAT, PHOTO)


@pytest.mark.parametrize("spec", [LAST, CONCAT, LABELS, replace(LABELS, diffusion=True)])
def test_few_features_and_many_classes_go_through_h_itself(spec: ModelSpec) -> None:
    assert keeps_dense(spec, ARXIV)


# Milliseconds measured by `python -m benchmarks.performance.batches.products` on an AMD EPYC with 2 threads, on
# 2026-11-20.
@pytest.mark.parametrize(
    ("sizes", "spec", "factors", "dense"),
    [
        (CORA, CONCAT, 0.77, 11.4),
        (PUBMED, CONCAT, 6.2, 139.0),
        (PHOTO, CONCAT, 18.7, 32.1),
        (COAUTHOR, LAST, 13.5, 407.0),
        (SYNTHETIC, LAST, 143.0, 18.4),
        (SYNTHETIC, CONCAT, 303.0, 72.0),
    ],
)
def test_the_estimate_decides_as_the_measurement_does(
    sizes: Sizes, spec: ModelSpec, factors: float, dense: float
) -> None:
    costs = product_costs(spec, sizes)
    assert (costs.dense < costs.factors) == (dense < factors)
    assert 0.5 <= 1e3 * costs.factors / factors <= 2.0
    assert 0.5 <= 1e3 * costs.dense / dense <= 2.0
