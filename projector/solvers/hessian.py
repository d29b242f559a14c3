"""The Hessian of F at one point, factorised: a preconditioner for what is minimised near that point.

    (1/n) sum_i S_i (x) h_i h_i^T + lambda I,    S_i the Hessian of row i's loss by its logits.

One-vs-rest losses have diagonal S_i, so each class has a factor of its own. Softmax couples the classes, and adding a
constant to a row of logits changes nothing: on the (C-1)-dimensional complement of that direction there is one factor
for all classes, and along it the Hessian is lambda I. Where H has fewer rows than columns, all of this happens in its
row space (a thin QR of H^T), and the Hessian is lambda I on the complement.

The factors are in float32 where its rounding is small beside lambda: a preconditioner need not be more precise, and
forming them takes half the time. [Amazon Photo, lambda 1e-4 and 1e-6: as many steps as with float64.] Where features
are large and lambda small they are in float64; rounding there would hide the directions that lambda alone curves.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from projector.network.representation import Representation
from projector.solvers.objective import Objective, Point

#: Largest order of a factor.
LARGEST_ORDER = 8_192
#: Applying a factor reads it once; it is not worth that when a product with H reads this many times less.
_WORTH = 10.0


class Rows(Protocol):
    """H, computed when it is asked for."""

    def steps(self) -> Iterator[None]:
        """Computes what is not known of H, in short steps."""
        ...

    def H(self) -> Tensor:
        """H, (n_train, p), not to be written to."""
        ...


@dataclass(frozen=True, eq=False)
class HessianFactor:
    """A Cholesky factor of the Hessian; a trace of every row of H it was made from."""

    #: (factors, order, order) float32 or float64, lower triangular: one per class, or one for all.
    cholesky: Tensor
    #: Orthonormal basis (C, C - 1) of the class directions in which a coupled loss has curvature; None otherwise.
    class_basis: Tensor | None
    #: Orthonormal basis (p, n_train) of the row space of H; None where that is everything.
    row_space: Tensor | None
    regularization: float

    def solve(self, gradient: Tensor) -> Tensor:
        """The inverse of the factorised Hessian applied to (p, C)."""
        inside = gradient if self.row_space is None else self.row_space.T @ gradient
        columns = inside if self.class_basis is None else inside @ self.class_basis
        stacked = columns.T.reshape(self.cholesky.shape[0], -1, 1).to(self.cholesky.dtype)
        half = torch.linalg.solve_triangular(self.cholesky, stacked, upper=False)
        solved = torch.linalg.solve_triangular(self.cholesky.mT, half, upper=True)
        result: Tensor = solved.to(gradient.dtype).reshape(columns.shape[1], -1).T
        if self.class_basis is not None:
            result = result @ self.class_basis.T
            # Along the constant direction the Hessian is lambda.
            result = result + inside.mean(dim=1, keepdim=True) / self.regularization
        if self.row_space is None:
            return result
        outside = (gradient - self.row_space @ inside) / self.regularization
        return outside.add_(self.row_space @ result)


def factor_steps(objective: Objective, point: Point, rows: Rows) -> Iterator[HessianFactor | None]:
    """Factorises the Hessian at `point` in short steps: None after each but the last, then the factor.

    `rows` are those of the objective's graph. The longest step is a QR or Cholesky factorisation. Raises
    ArithmeticError when the Hessian is not made of finite numbers.
    """
    for _ in rows.steps():
        yield None
    H = rows.H()
    n, p = H.shape
    row_space = None
    if n < p:
        row_space, triangle = torch.linalg.qr(H.T)
        H = triangle.T.contiguous()
        yield None
    directions, class_basis = _class_directions(objective, point)
    dtype = _precision(objective, point, H)
    rounded = H.to(dtype)
    order, width = H.shape[1], directions.shape[1]
    coupled = class_basis is not None
    hessian = torch.zeros(
        (width, order, width, order) if coupled else (width, order, order), dtype=dtype, device=H.device
    )
    of_loss = objective.loss.hessian(point.logits, objective.labels)
    for second in range(width):
        # S_i applied to one class direction, in every row.
        curved = of_loss(directions[:, second].expand(n, -1).contiguous())
        weights = (curved @ directions / n).to(dtype)
        for first in range(second, width) if coupled else (second,):
            block = rounded.T @ (rounded * weights[:, first : first + 1])
            if coupled:
                hessian[first, :, second, :] = block
                hessian[second, :, first, :] = block.T
            else:
                hessian[second] = block
            yield None
    factors, size = (1, width * order) if coupled else (width, order)
    hessian = hessian.reshape(factors, size, size)
    hessian.diagonal(dim1=1, dim2=2).add_(objective.regularization)
    for number in range(factors):
        hessian[number] = _cholesky(hessian[number], objective.regularization)
        yield None
    yield HessianFactor(hessian, class_basis, row_space, objective.regularization)


def why_no_factor(representation: Representation, classes: int, coupled: bool, free: int | None = None) -> str | None:
    """Why the Hessian of this problem is not to be factorised; None if it is.

    `free` are the bytes that can still be allocated; None where that is not known.
    """
    n, p = representation.rows, representation.columns
    order, factors = min(n, p), classes
    if coupled:
        order, factors = order * (classes - 1), 1
    if order == 0:
        return "there is nothing to factorise"
    if order > LARGEST_ORDER:
        return f"its order would be {order:,}, above {LARGEST_ORDER:,}"
    if 4 * factors * order**2 > _WORTH * _bytes_of_product(representation, classes):
        return "conjugate gradients cost less: products with the features are cheaper than with the factor"
    # H in both precisions, a weighted copy, the matrix and its factor in either, and a basis of the row space.
    needed = 16 * n * p + 2 * 8 * factors * order**2 + (16 * n * p if n < p else 0)
    if free is not None and needed > free:
        return f"it needs {needed:,} bytes of memory and {free:,} are free"
    return None


def _bytes_of_product(representation: Representation, classes: int) -> float:
    """What a product with H and one with H^T read, about, through their factors."""
    total = 0.0
    for each in representation.inputs:
        total += 2 * each.rows.stored_bytes * (1 if each.rows.dense else max(1, classes / 4))
    return total


def _class_directions(objective: Objective, point: Point) -> tuple[Tensor, Tensor | None]:
    classes = point.W.shape[1]
    identity = torch.eye(classes, dtype=point.W.dtype, device=point.W.device)
    if not objective.loss.coupled:
        return identity, None
    basis = torch.linalg.qr(torch.cat([torch.ones_like(identity[:, :1]), identity[:, 1:]], dim=1)).Q[:, 1:]
    return basis, basis


def _precision(objective: Objective, point: Point, H: Tensor) -> torch.dtype:
    """Single precision where its rounding of the Hessian is small beside lambda, else double."""
    curvature = objective.loss.curvature(point.logits, objective.labels)
    largest = float((curvature @ (H * H)).amax()) / len(H) + objective.regularization
    return torch.float32 if _lift(torch.float32, largest) <= objective.regularization else torch.float64


def _lift(dtype: torch.dtype, largest: float) -> float:
    """What rounding may make of an eigenvalue of a matrix whose largest diagonal entry is `largest`, about."""
    return 10 * torch.finfo(dtype).eps * largest


def _cholesky(hessian: Tensor, regularization: float) -> Tensor:
    """The Cholesky factor of (order, order); rounding that makes it indefinite is lifted by its diagonal.

    By no more than lambda, which it has there already: more would leave the directions along which only lambda curves F
    preconditioned by something else.
    """
    if not bool(hessian.isfinite().all()):
        raise ArithmeticError("the Hessian is not made of finite numbers")
    lift = min(_lift(hessian.dtype, float(hessian.diagonal().amax())), regularization)
    for more in (0.0, lift, regularization - lift):
        hessian.diagonal().add_(more)
        factor: Tensor
        factor, info = torch.linalg.cholesky_ex(hessian)
        if not bool(info.any()):
            return factor
    raise ArithmeticError("rounding leaves the Hessian without a Cholesky factor")
