"""Symmetrising in place, tile by tile."""

import pytest
import torch

from projector.forgetting import symmetric
from projector.forgetting.symmetric import symmetrise


@pytest.mark.parametrize("size", [0, 1, 3, 4, 9, 30])
def test_every_tile_gets_its_symmetric_part(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symmetric, "_TILE", 4)
    matrix = torch.randn((size, size), dtype=torch.float64, generator=torch.Generator().manual_seed(size))
    expected, diagonal = (matrix + matrix.T) / 2, matrix.diagonal().clone()
    result = symmetrise(matrix)
    assert result is matrix
    assert torch.equal(result, expected)
    assert torch.equal(result, result.T)
    assert torch.equal(result.diagonal(), diagonal)
