"""Of how many deletions, of single nodes and of random shares of all nodes, the projection takes nothing."""

import numpy as np

from benchmarks.paper.unchanged_weights import directions_lost, nodes_losing_a_direction
from benchmarks.paper.units import Cases, Unit
from projector.forgetting.gram import factorise
from projector.graph.features import FeatureMatrix
from projector.graph.graph import Graph

#: Random deletions of each share in one unit.
_DRAWS = 10


def identity(graph: Graph, unit: Unit) -> Cases:
    """Deletions in which no direction is lost, so that the projection leaves W as it is."""
    features = FeatureMatrix(graph.features)
    gram = factorise(features, np.ones(graph.nodes, dtype=np.bool_))
    alone = nodes_losing_a_direction(features, gram).size
    yield "single", {"draws": graph.nodes, "unchanged": graph.nodes - alone, "nodes": 1}
    random = np.random.default_rng(unit.seed)
    for share in (0.01, 0.05, 0.10):
        nodes = max(1, round(share * graph.nodes))
        draws = [random.choice(graph.nodes, nodes, replace=False) for _ in range(_DRAWS)]
        unchanged = sum(directions_lost(features, gram, np.sort(each)) == 0 for each in draws)
        yield f"{share:g}", {"draws": _DRAWS, "unchanged": unchanged, "nodes": nodes}
