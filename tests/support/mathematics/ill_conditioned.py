"""Small models whose Hessian has condition numbers up to 10^10, as cases of `FaintModel`."""

import numpy as np

from projector.network.spec import Combine, LossKind, ModelSpec, PropagationKind
from tests.support.mathematics.faint_models import Case


def ill_conditioned_case(seed: int) -> Case:
    """Return the model of a seed: at most 60 nodes, lambda 1e-2 to 1e-6, one to three batches of one or several nodes.

    The largest |x|^2 / lambda is 1 to 10^10, and so is the ratio of the singular values of X. Some rows are zero,
    copies of others, or up to 1,000 times larger than all others.
    """
    rng = np.random.default_rng(seed)
    n, d, classes = int(rng.integers(3, 61)), int(rng.integers(1, 8)), int(rng.integers(2, 4))
    regularization = 10.0 ** rng.uniform(-6, -2)
    directions = np.linalg.qr(rng.standard_normal((d, d)))[0]
    X = rng.standard_normal((n, d)) * np.geomspace(1.0, 10.0 ** -rng.uniform(0, 10), d) @ directions
    X[rng.integers(0, n)] *= 10.0 ** rng.choice([0.0, rng.uniform(0, 3)])
    X[rng.integers(0, n)] = X[rng.integers(0, n)]
    X[rng.random(n) < 0.05] = 0.0
    largest = float(np.linalg.norm(X, axis=1).max())
    if largest > 0.0:
        X *= np.sqrt(10.0 ** rng.uniform(0, 10) * regularization) / largest
    upper = np.triu(rng.random((n, n)) < rng.uniform(0.0, 6.0 / n), 1)
    order = rng.permutation(n)
    training = rng.random(n) < 0.7
    training[order[:2]] = True
    sizes = np.minimum(rng.integers(1, [2, 6, 2]), n // 3)
    return Case(
        X=X,
        adjacency=(upper | upper.T).astype(np.float64),
        labels=rng.integers(0, classes, n),
        training=training,
        spec=ModelSpec(
            hops=int(rng.integers(1, 4)),
            combine=list(Combine)[int(rng.integers(2))],
            propagation=list(PropagationKind)[int(rng.integers(2))],
            loss=(LossKind.SOFTMAX, LossKind.OVR, LossKind.HINGE)[int(rng.integers(3))],
            regularization=regularization,
        ),
        batches=np.split(order, np.cumsum(sizes))[: int(rng.integers(1, 4))],
        old_preconditioner=bool(rng.random() < 0.5),
    )
