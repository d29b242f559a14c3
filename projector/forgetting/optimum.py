"""Turn weights at or near an optimum into a model state with matching coefficients."""

from dataclasses import replace

import torch
from torch import Tensor

from projector.forgetting.batch import ModelState
from projector.forgetting.coefficients import span_coefficients
from projector.forgetting.projection import SpanState
from projector.network.blocks import by_block, side_by_side
from projector.solvers.objective import Objective, Point

#: A difference between W and B + M T up to this share of W is left as it is.
_ROUNDING = 1e-12


def stacked(state: ModelState) -> Tensor:
    """Return the weights of all blocks of all inputs, stacked vertically, (p, C)."""
    return torch.cat([by_block(span.W, state.classes).reshape(-1, state.classes) for span in state.spans])


def at_optimum(state: ModelState, objective: Objective, point: Point) -> tuple[ModelState, tuple[Tensor, ...]]:
    """Return `state` with the weights at `point`, and span coefficients rebuilt from their dual variable.

    The coefficients are (blocks, n, C) float64 for each input, on the model's device.

    At a minimum W = H^T U with U = -residual / (lambda n_train), so B = X^T beta for beta = R^T S^T U. The rest of the
    gradient goes into T along strong directions, and leaves W along the others. For W = 0 all coefficients are set to
    0, although those of U need only cancel.
    """
    representation = objective.representation
    dual = objective.dual(point)
    betas = span_coefficients(representation, dual if point.W.any() else torch.zeros_like(dual))
    spans = []
    for number, (span, each, beta) in enumerate(zip(state.spans, representation.inputs, betas, strict=True)):
        W = side_by_side(representation.split(point.W)[number])
        beta[:, torch.from_numpy(~span.in_span).to(W.device)] = 0.0
        B = torch.cat([each.transposed_matmul(block) for block in beta], dim=1)
        spans.append(_explained(replace(span, W=W, B=B)))
    repaired = replace(state, features=spans[0], labels=spans[1] if len(spans) > 1 else None)
    return repaired, tuple(betas)


def _explained(span: SpanState) -> SpanState:
    """Return `span` with T from M+ (W - B), and W = B + M T if they differ by more than rounding."""
    M, M_pinv = span.gram.M, span.gram.M_pinv
    T = M_pinv @ (span.W - span.B)
    if span.gram.is_full:
        return replace(span, T=T)
    outside = span.W - span.B - M @ T
    if float(torch.linalg.norm(outside)) <= _ROUNDING * float(torch.linalg.norm(span.W)):
        return replace(span, T=T)
    T += M_pinv @ outside
    return replace(span, W=span.B + M @ T, T=T)
