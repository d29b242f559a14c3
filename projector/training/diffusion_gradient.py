"""The derivative of the training objective by the sigmas of adaptive diffusion.

Letters as in `diffusion`; t = (sh^2, sz^2), since everything depends on the squares alone. Unlike the derivative by a
sigma, that by its square does not vanish at 0. Derivatives go forward, G_l' = dG_l/dt, because there are only two:

    D_l' = D_l * (a' - sum_k D_ik a_ik'),    a_ij = -sh^2 |h_i - h_j|^2 - sz^2 |z_i - z_j|^2,
    H^(l+1)' = G_l' H^(l) + G_l H^(l)',      (|h_i - h_j|^2)' = 2 (h_i - h_j) . (h_i' - h_j').

By the envelope theorem the derivative of min_W F is that of F at its minimising W.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from projector.network.diffusion import DiffusionHops
from projector.network.hop_distances import column_chunks, differences

#: G_l' by sh^2 and by sz^2, each an (n, n) torch CSR matrix.
Derivatives = tuple[Tensor, Tensor]


def operator_derivatives(hops: DiffusionHops) -> list[Derivatives]:
    """Return G_l' of every hop l, by sh^2 and by sz^2."""
    derivatives: list[Derivatives] = []
    for hop in range(len(hops.operators)):
        derivatives.append(_derivatives(hops, hop, derivatives))
    return derivatives


def objective_derivatives(hops: DiffusionHops, weighted: Tensor, residual: Tensor) -> tuple[float, float]:
    """Return dF/d(sh^2) and dF/d(sz^2) at fixed W, for a loss of logits sum_b R_b (X W)_b.

    `weighted` (n, blocks * C) is X W, and `residual` (n, C) the gradient of the mean loss by the logits of all nodes.
    """
    width = residual.shape[1]
    slopes = [0.0, 0.0]
    for hop, panels in enumerate(_sweep(hops.operators, operator_derivatives(hops), weighted)):
        if hop in hops.block_hops:
            # Blocks that ended earlier are still propagated: a few extra columns, only in training.
            block = slice(hops.block_hops.index(hop) * width, (hops.block_hops.index(hop) + 1) * width)
            for which, derivative in enumerate(panels[1:]):
                slopes[which] += float((residual * derivative[:, block]).sum())
    return slopes[0], slopes[1]


def _derivatives(hops: DiffusionHops, hop: int, earlier: Sequence[Derivatives]) -> Derivatives:
    """Return G_l' of hop l, from those of earlier hops."""
    tensors, t_h, t_z = hops.neighbourhoods.tensors, hops.sigmas.sigma_h**2, hops.sigmas.sigma_z**2
    h, z = hops.distances[hop]
    h_by, z_by = _distance_derivatives(hops, hop, earlier)
    # Derivatives of the exponents' parts by sh^2 and by sz^2: the part in every row, and the z term.
    everywhere = (h + t_h * h_by[0], t_h * h_by[1])
    unlabelled = (t_z * z_by[0], z + t_z * z_by[1])
    averages = hops.averages(h, z)
    by = []
    for common, own in zip(everywhere, unlabelled, strict=True):
        slope = -(common[tensors.edges] + own[tensors.edges] * hops.unlabelled)
        means = hops.neighbourhoods.row_sums(averages * slope)
        by.append(hops.neighbourhoods.matrix(hops.gamma * averages * (slope - means[tensors.rows])))
    return by[0], by[1]


def _distance_derivatives(
    hops: DiffusionHops, hop: int, earlier: Sequence[Derivatives]
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the derivatives, by sh^2 and by sz^2, of |h_i - h_j|^2 and |z_i - z_j|^2 before hop l, each (m + 1,)."""
    everyone = np.arange(hops.features.nodes)
    X = column_chunks(hops.features, everyone, hops.live & hops.featured)
    y = torch.from_numpy(hops.labels.toarray()).to(hops.features.device)
    h_by, z_by = ([torch.zeros_like(hops.distances[hop][0]) for _ in range(2)] for _ in range(2))
    if hop == 0:
        return h_by, z_by
    first, second = (torch.from_numpy(end).to(y.device) for end in hops.neighbourhoods.ends)
    for chunks, sums in ((X, h_by), (iter([y]), z_by)):
        for columns in chunks:
            *_, last = _sweep(hops.operators[:hop], earlier, columns)
            for each in zip(*(differences(panel, first, second) for panel in last), strict=True):
                (part, difference), *derivatives = each
                for total, (_, derivative) in zip(sums, derivatives, strict=True):
                    total[:-1][part] += 2.0 * torch.linalg.vecdot(difference, derivative)
    return h_by, z_by


def _sweep(
    operators: Sequence[Tensor], derivatives: Sequence[Derivatives], Y: Tensor
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield Y, G_0 Y, G_1 G_0 Y, …, each with its derivatives by sh^2 and by sz^2."""
    by_h, by_z = torch.zeros_like(Y), torch.zeros_like(Y)
    yield Y, by_h, by_z
    for hop, (G, (G_h, G_z)) in enumerate(zip(operators, derivatives, strict=True)):
        if hop == 0:
            by_h, by_z = G_h @ Y, G_z @ Y
        else:
            by_h, by_z = G @ by_h + G_h @ Y, G @ by_z + G_z @ Y
        Y = G @ Y
        yield Y, by_h, by_z
