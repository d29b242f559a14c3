"""Forgets 20 nodes, and lets scikit-learn check it: trained on what remains, it finds the weights that forgetting left.

    python -m examples.scikit_learn [DATASET]

Lambda-strong convexity says how far each may be from the optimum of the remaining graph: for the weights that
forgetting left the certificate, for scikit-learn's the norm of their gradient over lambda.
"""

import os
import sys

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from model_store.datasets.load import default_data_dirs, load_dataset
from projector import ModelSpec, fit
from projector.graph.graph import Graph

Matrix = NDArray[np.float64]

FORGOTTEN = 20


def representation(graph: Graph, nodes: NDArray[np.int64], spec: ModelSpec) -> tuple[Matrix, NDArray[np.int64]]:
    """P^L X and y of the training nodes of the graph without `nodes`, with P = D^-1/2 (A + I) D^-1/2."""
    remain = np.setdiff1d(np.arange(graph.nodes), nodes)
    A = graph.adjacency[remain][:, remain] + spec.self_loops * sp.eye_array(remain.size)
    root = sp.diags_array(1.0 / np.sqrt(A.sum(axis=1)))
    H = sp.csr_array(graph.features)[remain].astype(np.float64)
    for _ in range(spec.hops):
        H = root @ A @ root @ H
    training = graph.train_mask[remain]
    return H.toarray()[training], graph.labels[remain][training]


def scikit_learn(H: Matrix, y: NDArray[np.int64], regularization: float) -> tuple[Matrix, float]:
    """The weights (d, C) of scikit-learn for H (n, d) and y (n,), and how far their gradient says they may be off.

    For three classes or more: of two, scikit-learn fits the difference of both columns alone.
    """
    model = LogisticRegression(C=1.0 / (regularization * len(H)), fit_intercept=False, solver="newton-cg", tol=1e-12)
    model.fit(H, y)
    W = model.coef_.T
    error = model.predict_proba(H) - np.eye(W.shape[1])[y]
    return W, float(np.linalg.norm(H.T @ error / len(H) + regularization * W)) / regularization


def main() -> None:
    """Prints what both find."""
    source = sys.argv[1] if len(sys.argv) > 1 else "cora"
    graph = load_dataset(source, data_dirs=default_data_dirs(os.environ))
    spec = ModelSpec(regularization=1e-4)
    training = np.flatnonzero(graph.train_mask)
    nodes = np.sort(np.random.default_rng(0).choice(training, FORGOTTEN, replace=False))

    model = fit(graph, spec)
    remaining, report = model.forget(nodes=nodes)
    assert report.bound_after is not None
    before, before_off = scikit_learn(*representation(graph, np.empty(0, dtype=np.int64), spec), spec.regularization)
    after, after_off = scikit_learn(*representation(graph, nodes, spec), spec.regularization)

    W, W_u = model.weights[0], remaining.weights[0]
    print(f"{source}: {graph.nodes} nodes, {training.size} of them trained on, weights of {W.shape[0]} x {W.shape[1]}")
    print(f"trained              |W| = {np.linalg.norm(W):.6f}")
    print(f"  to scikit-learn's  {np.linalg.norm(W - before):.1e}, whose gradient allows {before_off:.1e}")
    print(f"{FORGOTTEN} nodes forgotten   |W| = {np.linalg.norm(W_u):.6f}, moved by {np.linalg.norm(W_u - W):.6f}")
    print(f"  to scikit-learn's  {np.linalg.norm(W_u - after):.1e}, whose gradient allows {after_off:.1e}")
    print(f"  to retraining      {report.bound_after.bound:.1e} at most, by the certificate")


if __name__ == "__main__":
    main()
