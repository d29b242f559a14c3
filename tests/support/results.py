"""Synthetic unit results, and the claims that they support."""

from dataclasses import replace
from typing import Any

from benchmarks.paper.units import MEASURED
from benchmarks.report.claims.every import CLAIMS
from benchmarks.report.claims.verdicts import Finding, found
from benchmarks.report.results import Results


def unit(experiment: str, method: str, cases: dict[str, dict[str, Any]], **fields: Any) -> dict[str, Any]:
    return {
        "experiment": experiment,
        "dataset": "cora",
        "method": method,
        "seed": 0,
        "outcome": MEASURED,
        "cases": cases,
        "graph": {"nodes": 2708, "edges": 5278, "training": 1208, "test": 1000, "features": 1433, "classes": 7},
        "device": "A machine",
        "threads": 1,
        "date": "2026-11-23",
        "commit": "0123456789abcdef",
        "seconds": 1.0,
        **fields,
    }


def measured(name: str, *records: dict[str, Any]) -> Finding:
    """Judge a claim as if no refuting example were known."""
    (claim,) = (each for each in CLAIMS if each.name == name)
    return found(replace(claim, general=False), Results(records))
