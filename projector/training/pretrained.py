"""Weights trained elsewhere: check them against the features, then train from them.

The span coefficients need the dual variable, which is known only at the optimum. So pretrained weights are a starting
point, and are never served unchanged.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from projector.device import enough_memory
from projector.errors import ProjectorError
from projector.forgetting.gram import Gram
from projector.graph.graph import Graph
from projector.network.spec import LossKind, ModelSpec
from projector.solvers.objective import Point
from projector.training.fit import Problem, Trained, TrainingProgress

#: Weights with a larger share than this outside the span of the features are refused.
SPAN_TOLERANCE = 1e-6
_REMEDY = "Give the weights as one array of shape (blocks, features, classes)."


class WeightsError(ProjectorError):
    """Pretrained weights cannot be read, or do not belong to this graph and specification."""


@dataclass(frozen=True, eq=False)
class PretrainedWeights:
    """Weights for the dataset's own features."""

    #: W, (blocks, d, C) float64.
    weights: NDArray[np.float64]
    #: (label_hops, C, C) float64; None if the file has none.
    label_weights: NDArray[np.float64] | None = None


def starting_point(
    pretrained: PretrainedWeights, spec: ModelSpec, graph: Graph, exponents: NDArray[np.int64] | None, gram: Gram
) -> Tensor:
    """Return the pretrained weights as W (p, C), on the device of `gram`, exactly within the span.

    `graph` is the training graph. Column j of its features is the dataset's times 2**exponents[j], and `gram` belongs
    to them. Raises WeightsError if the weights have another shape, or lie outside the span of the features by more than
    `SPAN_TOLERANCE`.
    """
    _check_trainable(spec)
    _check_shapes(pretrained, spec, graph)
    scale = 1.0 if exponents is None else np.exp2(-exponents.astype(np.float64))[:, None]
    blocks = torch.from_numpy(np.ascontiguousarray(pretrained.weights * scale)).to(gram.M.device)
    within = torch.stack([gram.M_pinv @ (gram.M @ block) for block in blocks])
    _check_span("features", blocks, within)
    parts = [within.reshape(-1, graph.num_classes)]
    if pretrained.label_weights is not None:
        labels = torch.from_numpy(np.ascontiguousarray(pretrained.label_weights)).to(gram.M.device)
        present = np.isin(np.arange(graph.num_classes), graph.labels[graph.train_mask])
        within = labels * torch.from_numpy(present).to(labels.device)[None, :, None]
        _check_span("training labels", labels, within)
        parts.append(within.reshape(-1, graph.num_classes))
    return torch.cat(parts)


def _check_trainable(spec: ModelSpec) -> None:
    """Raise WeightsError for parts whose learned state a weights file does not contain."""
    reasons = {
        "plain hinge loss, at whose optimum no dual variable can be read off": spec.loss is LossKind.PLAIN_HINGE,
        "adaptive diffusion, whose learned sigmas the file does not have": spec.diffusion,
        "an MLP, whose own weights the file does not have": spec.mlp_width > 0,
    }
    for reason, applies in reasons.items():
        if applies:
            raise WeightsError(f"The specification has {reason}.", "Train this model with `./lethe train`.")


def _check_shapes(pretrained: PretrainedWeights, spec: ModelSpec, graph: Graph) -> None:
    found, expected = pretrained.weights.shape, (len(spec.block_hops), graph.num_features, graph.num_classes)
    wrong = [
        f"{has} {name} where the model has {needs}"
        for name, has, needs in zip(("blocks", "features", "classes"), found, expected, strict=True)
        if has != needs
    ]
    if wrong:
        raise WeightsError(
            f"The weights are for {' and '.join(wrong)}: they are of another graph or another specification.",
            f"Give weights of shape {expected}, or the dataset and settings they were trained with.",
        )
    labels = None if pretrained.label_weights is None else pretrained.label_weights.shape
    needed = (spec.label_hops, graph.num_classes, graph.num_classes) if spec.label_hops else None
    if labels != needed:
        raise WeightsError(
            f"The weights of the label blocks have shape {labels or 'none'}, the specification asks for "
            f"{needed or 'none'}.",
            "Give them in the shape (label hops, classes, classes), or leave them out without label reuse.",
        )


def _check_span(of: str, given: Tensor, within: Tensor) -> None:
    """Raise WeightsError if a block of `given` lies outside the span; `within` is its projection."""
    sizes = torch.linalg.vector_norm(given, dim=(1, 2))
    outside = torch.linalg.vector_norm(given - within, dim=(1, 2))
    residual = float((outside / sizes.clamp_min(torch.finfo(sizes.dtype).tiny)).max())
    if residual > SPAN_TOLERANCE:
        raise WeightsError(
            f"The weights lie outside the span of the {of}: a share of {residual:.1e} of them, above "
            f"{SPAN_TOLERANCE:.0e}, is on directions that no node of this graph has.",
            "They come from another graph, from a random initialisation, or from other preprocessing of the features; "
            "train with `./lethe train`, or give the dataset they were trained on.",
        )


def train_on(
    spec: ModelSpec,
    graph: Graph,
    start: Tensor,
    *,
    progress: Callable[[TrainingProgress], None] | None = None,
) -> Trained:
    """Train from W = `start` (p, C) to the optimum, on its device, regardless of the solver in `spec`.

    Raises TrainingError if it does not reach the optimum.
    """
    report_progress = progress or (lambda each: None)

    def report(iteration: int, point: Point) -> None:
        report_progress(TrainingProgress(iteration, None, point.value, point.relative_gradient))

    with enough_memory(start.device, graph.nodes, graph.num_features):
        return Problem.of(spec, graph, start.device, report_progress).solved(start, spec.tolerance, report)
