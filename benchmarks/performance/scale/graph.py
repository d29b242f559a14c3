"""A synthetic graph of any size with the degrees of ogbn-products, for measurements of scale.

Degrees of ogbn-products (Hu et al. 2020) are skewed: 50.5 on average, 17,481 at most. Here both ends of an edge are
drawn by log-normal weights, with four of five edges between nodes of one class (Chung and Lu's model with communities).
Features are dense: the class mean plus noise, so that there is something to learn.

    python -m benchmarks.performance.scale.graph FILE.npz [--nodes 2449029] [--edges 61859140] [--features 100]
        [--classes 47] [--training 196615] [--seed 0]
"""

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

#: Standard deviation of a weight's logarithm. With ten million edges between a million nodes, the largest degree is
#: some thousands.
_SPREAD = 1.3
_HOMOPHILY = 0.8
#: Number of edges or rows drawn together.
_BLOCK = 1 << 22


@dataclass(frozen=True)
class Shape:
    """The size of the graph."""

    nodes: int = 2_449_029
    edges: int = 61_859_140
    features: int = 100
    classes: int = 47
    training: int = 196_615
    seed: int = 0

    def of_nodes(self, nodes: int) -> "Shape":
        """Scale to a number of nodes, with the same degree and share of training nodes."""
        part = nodes / self.nodes
        return replace(self, nodes=nodes, edges=round(part * self.edges), training=round(part * self.training))


def drawn_edges(shape: Shape, labels: NDArray[np.int64], device: str = "cpu") -> NDArray[np.int32]:
    """Draw each undirected edge in both directions, (2, 2 * edges), without duplicates or self-loops.

    Another device draws other edges than the CPU does.
    """
    generator = torch.Generator(device).manual_seed(shape.seed)
    classes = torch.from_numpy(labels).to(device)
    weights = torch.empty(shape.nodes, device=device, dtype=torch.float64).log_normal_(std=_SPREAD, generator=generator)
    everyone = weights.cumsum(0)
    by_class = classes.argsort(stable=True)
    within = weights[by_class].cumsum(0)
    ends = torch.cat([within.new_zeros(1), within[torch.bincount(classes, minlength=shape.classes).cumsum(0) - 1]])

    def uniform(count: int) -> Tensor:
        return torch.rand(count, device=device, dtype=torch.float64, generator=generator)

    keys = torch.empty(0, dtype=torch.int64, device=device)
    while len(keys) < shape.edges:
        drawn, missing = [keys], round(1.02 * (shape.edges - len(keys))) + 100
        for done in range(0, missing, _BLOCK):
            count = min(_BLOCK, missing - done)
            left = torch.searchsorted(everyone, uniform(count) * everyone[-1])
            own = classes[left]
            place = torch.searchsorted(within, ends[own] + uniform(count) * (ends[own + 1] - ends[own]))
            alike = by_class[place.clamp_(max=shape.nodes - 1)]
            anyone = torch.searchsorted(everyone, uniform(count) * everyone[-1])
            right = torch.where(uniform(count) < _HOMOPHILY, alike, anyone)
            drawn.append((torch.minimum(left, right) * shape.nodes + torch.maximum(left, right))[left != right])
        keys = torch.unique(torch.cat(drawn))
    # Chosen at random: keys are ordered by the lower end, so dropping the last ones would leave nodes without edges.
    kept = uniform(len(keys)).argsort()[: shape.edges]
    keys = keys[kept.sort().values].cpu()
    low, high = (keys // shape.nodes).to(torch.int32), (keys % shape.nodes).to(torch.int32)
    return np.stack([torch.cat([low, high]).numpy(), torch.cat([high, low]).numpy()])


def drawn_features(shape: Shape, labels: NDArray[np.int64]) -> NDArray[np.float32]:
    """Draw features (nodes, features)."""
    random = np.random.default_rng((shape.seed, 1))
    means = random.normal(size=(shape.classes, shape.features)).astype(np.float32)
    X = np.empty((shape.nodes, shape.features), dtype=np.float32)
    for start in range(0, shape.nodes, _BLOCK // shape.features):
        rows = slice(start, start + _BLOCK // shape.features)
        random.standard_normal(out=X[rows], dtype=np.float32)
        X[rows] *= 3
        X[rows] += means[labels[rows]]
    return X


def write(file: Path, shape: Shape, device: str = "cpu") -> None:
    """Write the dataset as an uncompressed `.npz`; `device` draws the edges."""
    random = np.random.default_rng((shape.seed, 2))
    labels = random.integers(shape.classes, size=shape.nodes)
    labels[: shape.classes] = np.arange(shape.classes)
    order = random.permutation(shape.nodes)
    ends = [shape.training, shape.training + (shape.nodes - shape.training) // 6]
    train, val, test = (np.isin(np.arange(shape.nodes), part) for part in np.split(order, ends))
    edges, features = drawn_edges(shape, labels, device), drawn_features(shape, labels)
    np.savez(file, edge_index=edges, x=features, y=labels, train_mask=train, val_mask=val, test_mask=test)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    for name, value in vars(Shape()).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    options = vars(parser.parse_args())
    write(options.pop("file"), Shape(**options))


if __name__ == "__main__":
    main()
