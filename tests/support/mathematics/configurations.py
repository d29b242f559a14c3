"""All configurations of a model and a request, and a few that cover every pair of choices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from projector.network.spec import Combine, LossKind, ModelSpec, SolverKind
from tests.support.everyday import covering, products


@dataclass(frozen=True)
class Configuration:
    """One cell of the matrix."""

    combine: Combine
    loss: LossKind
    solver: SolverKind
    label_hops: int
    diffusion: bool
    mlp: bool
    layout: str
    #: Kinds of the requests.
    kinds: tuple[str, ...]

    @property
    def spec(self) -> ModelSpec:
        """The specification to train. A loss that `newton` cannot minimise exactly takes many small steps."""
        spec = ModelSpec(
            combine=self.combine,
            loss=self.loss,
            solver=self.solver,
            label_hops=self.label_hops,
            diffusion=self.diffusion,
            mlp_width=12 if self.mlp else 0,
            regularization=1e-3,
        )
        return replace(spec, learning_rate=0.02, batch_size=16, epochs=8) if self.solver is SolverKind.SGD else spec

    def __str__(self) -> str:
        parts = [self.combine.value, self.loss.value, self.solver.value, f"labels{self.label_hops}"]
        parts += ["diffusion"] * self.diffusion + ["mlp"] * self.mlp + [self.layout, "+".join(self.kinds)]
        return "-".join(parts)


CHOICES: Mapping[str, Sequence[object]] = {
    "combine": list(Combine),
    "loss": list(LossKind),
    "solver": list(SolverKind),
    "label_hops": [0, 1, 3],
    "diffusion": [False, True],
    "mlp": [False, True],
    "layout": ["dense", "csr"],
    "kinds": [("node",), ("features",), ("edge",), ("node", "features", "edge")],
}


def allowed(choice: Mapping[str, object]) -> bool:
    """Whether a choice is valid: the plain hinge needs `sgd`, since it has no second derivative; an MLP's output is
    dense.
    """
    if choice.get("loss") is LossKind.PLAIN_HINGE and choice.get("solver") is SolverKind.NEWTON:
        return False
    return not (choice.get("mlp") and choice.get("layout") == "csr")


@cache
def every() -> list[Configuration]:
    """Return the whole matrix."""
    return [_configuration(choice) for choice in products(CHOICES) if allowed(choice)]


@cache
def pairwise() -> list[Configuration]:
    """Return a few configurations that cover every allowed pair of choices."""
    return [_configuration(choice) for choice in covering(CHOICES, allowed)]


def _configuration(choice: Mapping[str, Any]) -> Configuration:
    return Configuration(**choice)
