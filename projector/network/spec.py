"""What defines a model besides its data: propagation, blocks, loss, solver."""

import math
from dataclasses import dataclass
from enum import StrEnum

from projector.errors import TrainingError

#: Largest number of hops for which label reuse can exclude the node's own label.
MAX_LABEL_HOPS = 3
#: Every graph is smoothed to nothing long before this, and no valid manifest asks for more. Over many more hops the
#: rounding of P would exceed what the certificate adds for it. [50 hops, of nodes with one neighbour each.]
MAX_HOPS = 30
#: Random generators take 64 bits, and the manifest a signed integer.
MAX_SEED = 2**63 - 1
#: Every guarantee divides by lambda: only for lambda > 0 is the optimum unique and the distance to it bounded by the
#: gradient. The limits leave room for computations with lambda, in single precision too.
MIN_LAMBDA, MAX_LAMBDA = 1e-30, 1e30
#: Largest ratio of class sizes that balancing allows for, in either direction.
MIN_WEIGHT, MAX_WEIGHT = 1e-12, 1e12
_ALLOWED_LAMBDA = (
    f"{MIN_LAMBDA:g} to {MAX_LAMBDA:g}: at 0 there is no unique optimum, and no bound on the distance to one"
)


class PropagationKind(StrEnum):
    """Normalisation of the adjacency matrix."""

    #: D^-1/2 (A + sI) D^-1/2
    SYM = "sym"
    #: D^-1 (A + sI)
    ROW = "row"


class Combine(StrEnum):
    """Which propagated copies of the features form the representation."""

    #: H = P^L X (the paper's Eq. 1)
    LAST = "last"
    #: H = [X, PX, ..., P^L X] (the paper's experiments)
    CONCAT = "concat"


class LossKind(StrEnum):
    """The loss averaged over the training nodes."""

    #: Cross-entropy of softmax probabilities.
    SOFTMAX = "softmax"
    #: One logistic regression per class against the rest (the paper's Eq. 2).
    OVR = "ovr"
    #: One support vector machine per class against the rest, the hinge smoothed quadratically over a width of 1.
    HINGE = "hinge"
    #: The unsmoothed hinge: `sgd` only, and no certificate.
    PLAIN_HINGE = "plain_hinge"
    #: Half the squared distance to the one-hot class, or to real-valued targets.
    SQUARED = "squared"


class ClassWeight(StrEnum):
    """How much each class counts in the loss."""

    #: Every training node counts alike.
    NONE = "none"
    #: n_train / (C n_c) for each training node of class c, so that all C classes count alike.
    BALANCED = "balanced"


class SolverKind(StrEnum):
    """The method that finds the weights."""

    NEWTON = "newton"
    SGD = "sgd"


_KINDS: dict[str, type[StrEnum]] = {
    "propagation": PropagationKind,
    "combine": Combine,
    "loss": LossKind,
    "solver": SolverKind,
    "class_weight": ClassWeight,
}


@dataclass(frozen=True)
class ModelSpec:
    """Everything that determines the trained weights, apart from the graph."""

    propagation: PropagationKind = PropagationKind.SYM
    #: s in A + sI.
    self_loops: float = 1.0
    #: L, the number of hops; 0 for a linear model on the features alone, which has no edges.
    hops: int = 2
    combine: Combine = Combine.LAST
    loss: LossKind = LossKind.SOFTMAX
    #: Ly, the number of label blocks (P^l - diag P^l) Y, l = 1 … Ly; 0 for no label reuse, at most 3.
    label_hops: int = 0
    #: Whether the feature hops use adaptive diffusion instead of P.
    diffusion: bool = False
    #: g in (1 - g) I + g D of adaptive diffusion.
    gamma: float = 1.0
    #: Width of Z = relu(relu(X W1) W2), which replaces X; 0 for no MLP.
    mlp_width: int = 0
    class_weight: ClassWeight = ClassWeight.NONE
    #: w_c, one per class: counted when training begins, then frozen. Empty: not counted yet, or all are 1.
    class_weights: tuple[float, ...] = ()
    #: lambda, the weight of |W|_F^2 / 2.
    regularization: float = 1e-4
    solver: SolverKind = SolverKind.NEWTON
    #: Newton stops when |grad|_F / lambda <= tolerance * |W|_F.
    tolerance: float = 1e-11
    #: sgd: learning rate, momentum (neither for the plain hinge, whose steps are Pegasos'), batch size (0 = full
    #: batch), epochs.
    learning_rate: float = 1.0
    momentum: float = 0.9
    batch_size: int = 0
    epochs: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        """Accept names as strings, too. Raises TrainingError for an unknown one."""
        for name, kind in _KINDS.items():
            given = getattr(self, name)
            try:
                object.__setattr__(self, name, kind(given))
            except ValueError:
                raise TrainingError(f"There is no {name} {given!r}.", f"Choose one of {', '.join(kind)}.") from None

    @property
    def block_hops(self) -> tuple[int, ...]:
        """The hop of each feature block, in the order of the blocks of W."""
        return (self.hops,) if self.combine is Combine.LAST else tuple(range(self.hops + 1))

    @property
    def uses_edges(self) -> bool:
        """Whether predictions depend on edges; if not, the model stores none."""
        return self.hops > 0


def check_spec(spec: ModelSpec) -> None:
    """Raise TrainingError naming the first setting that is out of range."""
    ranges = {
        "self_loops": (spec.self_loops, spec.self_loops >= 0, "0 or more"),
        "hops": (spec.hops, 0 <= spec.hops <= MAX_HOPS, f"0 to {MAX_HOPS}"),
        "regularization": (
            spec.regularization,
            MIN_LAMBDA <= spec.regularization <= MAX_LAMBDA,
            _ALLOWED_LAMBDA,
        ),
        "tolerance": (spec.tolerance, 0 < spec.tolerance < 1, "more than 0 and less than 1, such as 1e-11"),
        "learning_rate": (spec.learning_rate, spec.learning_rate > 0, "more than 0"),
        "momentum": (spec.momentum, 0 <= spec.momentum < 1, "at least 0 and less than 1"),
        "batch_size": (spec.batch_size, spec.batch_size >= 0, "0 (all training nodes) or more"),
        "label_hops": (spec.label_hops, 0 <= spec.label_hops <= MAX_LABEL_HOPS, f"0 to {MAX_LABEL_HOPS}"),
        "gamma": (spec.gamma, 0 < spec.gamma <= 1, "more than 0 and at most 1"),
        "mlp_width": (spec.mlp_width, spec.mlp_width >= 0, "0 (no MLP) or more"),
        "seed": (spec.seed, 0 <= spec.seed <= MAX_SEED, f"0 to {MAX_SEED}"),
        "epochs": (spec.epochs, spec.epochs >= 1, "1 or more"),
    }
    ranges |= {
        f"class_weights[{number}]": (weight, MIN_WEIGHT <= weight <= MAX_WEIGHT, f"{MIN_WEIGHT:g} to {MAX_WEIGHT:g}")
        for number, weight in enumerate(spec.class_weights)
    }
    for name, (value, in_range, allowed) in ranges.items():
        if not (in_range and math.isfinite(value)):
            raise TrainingError(f"The setting {name} is {value}.", f"Choose a finite value of {allowed}.")
    if not spec.uses_edges and (spec.label_hops or spec.diffusion):
        raise TrainingError(
            "Label reuse and adaptive diffusion need edges, and a model with 0 hops uses none.",
            "Leave them out, or choose 1 hop or more.",
        )
    if spec.loss is LossKind.PLAIN_HINGE and spec.solver is not SolverKind.SGD:
        raise TrainingError(
            f"The loss {spec.loss} has kinks, so {spec.solver} finds no optimum of it and nothing can be certified.",
            f"Use --solver {SolverKind.SGD}, or the smoothed --loss {LossKind.HINGE}.",
        )
