"""What defines a model apart from its data: propagation, blocks, loss, solver."""

from dataclasses import dataclass
from enum import StrEnum

#: Label reuse excludes the node's own label at up to this many hops.
MAX_LABEL_HOPS = 3


class PropagationKind(StrEnum):
    """How the adjacency is normalised."""

    #: D^-1/2 (A + sI) D^-1/2
    SYM = "sym"
    #: D^-1 (A + sI)
    ROW = "row"


class Combine(StrEnum):
    """Which propagated copies of the features the representation holds."""

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
    #: The same with the hinge as it is: `sgd` only, and no certificate.
    PLAIN_HINGE = "plain_hinge"


class SolverKind(StrEnum):
    """How the weights are found."""

    NEWTON = "newton"
    SGD = "sgd"


@dataclass(frozen=True)
class ModelSpec:
    """Everything that, with the graph and the seed, determines the trained weights."""

    propagation: PropagationKind = PropagationKind.SYM
    #: s in A + sI.
    self_loops: float = 1.0
    #: L, the number of hops; at least 1.
    hops: int = 2
    combine: Combine = Combine.LAST
    loss: LossKind = LossKind.SOFTMAX
    #: Ly, the number of label blocks (P^l - diag P^l) Y, l = 1 … Ly; 0 for no label reuse, at most 3.
    label_hops: int = 0
    #: Whether the feature hops go through adaptive diffusion instead of P.
    diffusion: bool = False
    #: g in (1 - g) I + g D of adaptive diffusion.
    gamma: float = 1.0
    #: Width of Z = relu(relu(X W1) W2), which then takes the place of X; 0 for no MLP.
    mlp_width: int = 0
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

    @property
    def block_hops(self) -> tuple[int, ...]:
        """The hop of each feature block, in the order of the blocks of W."""
        return (self.hops,) if self.combine is Combine.LAST else tuple(range(self.hops + 1))
