"""Identify the deleted node from other nodes' answers, exact and rounded: rate of first ranks, and the median rank."""

from benchmarks.attacks.identification import matched_filter, neighbours
from benchmarks.attacks.ranking import first, place
from benchmarks.paper.inference.versions import ROUNDINGS, Pair, by_pair, victim_of
from benchmarks.paper.units import Cases, Figures, Unit
from projector.graph.graph import Graph


def identification(graph: Graph, unit: Unit) -> Cases:
    """Delete thirty nodes one at a time, among up to 5,000 candidates."""
    victim = victim_of(graph, unit)
    known = victim.known
    labels, count = graph.labels[known.candidates], known.candidates.size

    def figures(pair: Pair) -> Figures:
        found: Figures = {"candidates": count, "first_chance": 1 / count, "middle_rank": (count + 1) / 2}
        (true,) = (known.candidates == pair.nodes[0]).nonzero()[0]
        for rounding, decimals in ROUNDINGS.items():
            versions = pair.before.rounded(decimals), pair.after.rounded(decimals)
            for attack, scores in (
                ("filter", matched_filter(*versions, known, labels)),
                ("neighbours", neighbours(*versions, known)),
            ):
                found[f"{attack}_{rounding}_first"] = first(scores, known.candidates == pair.nodes[0])
                found[f"{attack}_{rounding}_rank"] = 1 + place(scores, int(true))
        return found

    for name, averages in by_pair(graph, unit, victim.single, figures).items():
        yield name, {"deletions": len(victim.single), **averages}
