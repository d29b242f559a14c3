"""Symmetric matrices, tile by tile and strip by strip."""

import numpy as np
import pytest
import torch

from projector.forgetting import symmetric
from projector.forgetting.symmetric import rank_update, symmetrise
from tests.support.everyday import every_case


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


@every_case("m", [0, 1, 15, 16, 40])
@every_case("size", [0, 1, 4, 5, 8, 30])
@every_case("kind", ["random", "duplicated", "with zero rows", "over ten decades"])
def test_a_rank_update_is_the_sum_and_leaves_the_matrix_alone(
    size: int, m: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(symmetric, "_STRIP", 4)
    rng = np.random.default_rng(size + 100 * m)
    rows = rng.standard_normal((m, size))
    if kind == "duplicated":
        rows[m // 2 :] = rows[: m - m // 2]
    elif kind == "with zero rows":
        rows[::2] = 0.0
    elif kind == "over ten decades":
        rows *= np.logspace(-5, 5, size)
    root = rng.standard_normal((size, size))
    matrix = root.T @ root
    given = torch.from_numpy(matrix.copy())
    result = rank_update(given, torch.from_numpy(rows), -1.0)
    scale = np.abs(matrix) + np.abs(rows).T @ np.abs(rows)
    assert (np.abs(result.numpy() - (matrix - rows.T @ rows)) <= 1e-14 * scale).all()
    assert np.array_equal(given.numpy(), matrix)
    signs = np.where(np.arange(m) % 3 == 0, -1.0, 1.0)
    signed = rank_update(given, torch.from_numpy(rows), torch.from_numpy(signs))
    assert (np.abs(signed.numpy() - (matrix + (rows.T * signs) @ rows)) <= 1e-14 * scale).all()
    if m >= 16 and size > 4:
        assert torch.equal(result[4:, :4], result[:4, 4:].T)
        assert torch.equal(signed[4:, :4], signed[:4, 4:].T)
