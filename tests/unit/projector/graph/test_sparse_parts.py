"""Sparse features with inconsistent parts are refused before compiled code uses them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from projector.errors import GraphError
from projector.graph.sparse_parts import from_compressed
from projector.graph.tensors import from_torch_geometric
from tests.support.everyday import every_case

#: 4 x 6, with every second block of 2 x 2 empty.
DENSE = torch.kron(torch.tensor([[1.0, 0, 2], [0, 3, 0]]), torch.tensor([[1.0, 2], [3, 4]]))
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "COO": torch.Tensor.to_sparse,
    "CSR": torch.Tensor.to_sparse_csr,
    "CSC": torch.Tensor.to_sparse_csc,
    "BSR": lambda dense: dense.to_sparse_bsr((2, 2)),
    "BSC": lambda dense: dense.to_sparse_bsc((2, 2)),
}


def read(x: torch.Tensor) -> np.ndarray[Any, Any]:
    edges, labels = torch.tensor([[0, 1], [1, 0]]), torch.tensor([0, 1, 0, 1])
    features = from_torch_geometric({"edge_index": edges, "x": x, "y": labels}, "made").features
    return np.asarray(features if isinstance(features, np.ndarray) else features.toarray())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_features_of_every_layout_are_the_matrix_that_they_are(layout: str) -> None:
    assert read(LAYOUTS[layout](DENSE)).tolist() == DENSE.tolist()


@every_case("layout", ["CSR", "CSC", "BSR", "BSC"])
@every_case(
    "pointers",
    [
        lambda good: [0] + [10**9] * (len(good) - 1),
        lambda good: [0, 10**9, *good[2:]],
        # scipy treats a matrix whose last pointer is 0 or negative as empty, and checks no further.
        lambda good: [0, 10**9] + [0] * (len(good) - 2),
        lambda good: [0, 10**9] + [-1] * (len(good) - 2),
        lambda good: [-5, *good[1:]],
        lambda good: good[::-1],
        lambda good: good[:-1],
        lambda good: good + good[-1:],
        lambda good: [float(value) for value in good],
    ],
)
def test_pointers_to_other_values_than_are_stored_are_refused(
    layout: str, pointers: Callable[[list[int]], Any]
) -> None:
    good = LAYOUTS[layout](DENSE)
    columns = layout in ("CSC", "BSC")
    held = good.ccol_indices() if columns else good.crow_indices()
    indices = good.row_indices() if columns else good.col_indices()
    parts = (np.array(pointers(held.tolist())), indices.numpy(), good.values().numpy())
    with pytest.raises(ValueError, match="pointers"):
        from_compressed(*parts, tuple(DENSE.shape), by_columns=columns)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("wrong", [10**9, -1, 6])
def test_an_index_outside_of_the_matrix_is_refused(layout: str, wrong: int) -> None:
    x = LAYOUTS[layout](DENSE)
    if layout == "COO":
        indices = x.indices().clone()
        indices[1, 0] = wrong
        bad = torch.sparse_coo_tensor(indices, x.values(), x.shape, check_invariants=False, is_coalesced=True)
    else:
        columns = layout in ("CSC", "BSC")
        indices = (x.row_indices() if columns else x.col_indices()).clone()
        indices[0] = wrong
        pointers = x.ccol_indices() if columns else x.crow_indices()
        bad = torch.sparse_compressed_tensor(
            pointers, indices, x.values(), x.shape, layout=x.layout, check_invariants=False
        )
    with pytest.raises(GraphError, match="an index is not within"):
        read(bad)


def test_rows_that_only_a_shape_claims_are_refused_before_they_take_memory() -> None:
    claimed = torch.sparse_coo_tensor(torch.tensor([[0], [0]]), torch.ones(1), (10**12, 2), check_invariants=False)
    with pytest.raises(GraphError, match="one label per node"):
        read(claimed)


def test_a_value_that_is_given_several_times_is_their_sum() -> None:
    twice = torch.sparse_coo_tensor(torch.tensor([[0, 0], [1, 1]]), torch.tensor([1.0, 2.0]), (4, 6))
    assert read(twice)[0].tolist() == [0, 3, 0, 0, 0, 0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_features_in_short_floats_keep_their_values(dtype: torch.dtype) -> None:
    assert read(DENSE.to(dtype)).tolist() == DENSE.tolist()
