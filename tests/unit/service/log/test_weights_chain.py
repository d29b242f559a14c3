"""The weights in a log's leaves follow from one another: properties of honest logs, and violations."""

from typing import Any

import pytest

from service.log.verification import WeightsChains
from tests.support.everyday import every_case

Leaf = dict[str, Any]


def digest(name: str) -> str:
    return name.encode().hex().ljust(64, "0")


def batch(after: int, *types: str, weights: str | None = None, before: str | None = None, **repair: Any) -> list[Leaf]:
    """Return the leaves of one request in the batch that made version `after`."""
    details = {
        "model": "m",
        "model_version_before": after - 1,
        "weights_sha256_before": digest(before or str(after - 1)),
        "model_version_after": after,
        "weights_sha256_after": digest(weights or str(after)),
        "repair_version": None,
        "repair_weights_sha256": None,
        "software": "lethe 0.1.0",
    } | repair
    return [{"type": event, "details": details} for event in types or ("applied", "completed")]


def repaired(after: int, version: int, event: str = "repaired", weights: str | None = None) -> list[Leaf]:
    return batch(after, event, repair_version=version, repair_weights_sha256=digest(weights or str(version)))


def imported(after: int, weights: str | None = None) -> list[Leaf]:
    [leaf] = batch(after, "imported", weights=weights)
    return [leaf]


def recovered(version: int, *, before: str = "of another history") -> list[Leaf]:
    details = {"model": "m", "weights_sha256_before": digest(before), "store_before": "3-1", "database_before": None}
    after = {"model_version_after": version, "weights_sha256_after": digest(str(version))}
    return [{"type": "recovered", "details": details | after}]


def breaks(*parts: list[Leaf]) -> list[tuple[int, str]]:
    chains = WeightsChains()
    leaves = [leaf for part in parts for leaf in part]
    return [(index, one) for index, leaf in enumerate(leaves) for one in chains.take(index, leaf)]


#: Logs as written by the service.
HONEST = {
    "nothing of weights": [[{"type": "failed", "details": {}}, {"type": "log_key_added", "details": {"number": 2}}]],
    "batches": [batch(1), batch(2), batch(3)],
    "requests of one batch": [batch(1, "applied"), batch(1, "applied"), batch(1, "completed"), batch(1, "completed")],
    "repaired in the batch": [batch(1, "applied"), repaired(1, 1), batch(1, "completed"), batch(2)],
    "repaired later, for two batches": [batch(1), batch(2), repaired(1, 3), repaired(2, 3), batch(4)],
    "short of retraining, and covered by a later one": [
        batch(1),
        repaired(1, 2, "not_repaired"),
        batch(3, "applied"),
        repaired(3, 3),
        repaired(1, 3),
        batch(3, "completed"),
        batch(4),
    ],
    "given up without a version": [batch(1), batch(1, "not_repaired"), batch(2)],
    "an import, and the repair it ends": [batch(1), imported(2), batch(1, "not_repaired"), batch(3)],
    "a recovery of a store that is ahead": [batch(1), recovered(9), batch(10)],
    "a recovery before anything was logged": [recovered(5), batch(6)],
    "a recovery past a batch that was not applied yet": [
        batch(1),
        recovered(4),
        batch(2, "applied", "completed"),
        batch(5),
    ],
    "the same, repaired in the batch, for an earlier request too": [
        batch(1),
        recovered(4),
        batch(2, "applied"),
        repaired(2, 2),
        repaired(1, 2),
        batch(5),
    ],
    "a recovery that was interrupted and run again": [batch(1), recovered(4), recovered(5), batch(2), batch(6)],
    "the first batch of all, after a recovery": [recovered(3), batch(1), batch(4)],
    "two recoveries": [batch(1), recovered(4), batch(5), recovered(7), batch(6), batch(8)],
    "another model between": [
        batch(1),
        [leaf | {"details": leaf["details"] | {"model": "n"}} for leaf in batch(1, weights="other")],
        batch(2),
    ],
}


@pytest.mark.parametrize("log", HONEST.values(), ids=HONEST.keys())
def test_an_honest_log_is_not_doubted(log: list[list[Leaf]]) -> None:
    assert breaks(*log) == []


@every_case(
    ("log", "index", "what"),
    [
        ([batch(1), batch(2, before="x")], 2, "gives version 1 of m different weights"),
        ([batch(1), batch(2, weights="x"), batch(3)], 4, "gives version 2 of m different weights"),
        ([batch(1, "applied"), batch(1, "completed", weights="x")], 1, "gives version 1 of m different weights"),
        (
            [batch(1), repaired(1, 2), repaired(1, 2, weights="x")],
            3,
            "gives version 2 of m different weights",
        ),
        ([batch(1), repaired(1, 2, weights="x"), batch(3)], 3, "gives version 2 of m different weights"),
        ([batch(1), imported(2, weights="x"), batch(3)], 3, "gives version 2 of m different weights"),
        ([batch(1), recovered(4), batch(5, before="x")], 3, "gives version 4 of m different weights"),
        ([batch(1), batch(3)], 2, "no leaf explains how it followed version 1"),
        ([batch(1), repaired(1, 3)], 2, "no leaf explains how it followed version 1"),
        ([imported(1), batch(3)], 1, "no leaf explains how it followed version 1"),
        ([batch(2)], 0, "no leaf explains how it followed version 0"),
        ([batch(1, "completed")], 0, "no earlier leaf records that version 1 of m was applied"),
        ([batch(1), batch(3), batch(2)], 2, "no leaf explains how it followed version 1"),
        ([imported(1), imported(1)], 1, "makes version 1 of m after version 1"),
        ([batch(1), batch(2), recovered(2)], 4, "makes version 2 of m after version 2"),
        ([batch(1), recovered(5), batch(2), batch(3)], 5, "makes version 3 of m after version 5"),
        ([batch(1), recovered(5), batch(6), batch(2)], 5, "makes version 2 of m after version 6"),
        ([batch(1, model_version_before=7)], 0, "names version 1 but not the one before it"),
        ([batch(1, weights_sha256_before=None)], 0, "are not a version and a digest"),
        ([batch(1, model_version_after="1")], 0, "are not a version and a digest"),
        ([batch(1, weights_sha256_after="no digest")], 0, "are not a version and a digest"),
    ],
)
def test_what_no_honest_log_holds_is_found_and_its_leaf_named(log: list[list[Leaf]], index: int, what: str) -> None:
    found = breaks(*log)
    assert found[0][0] == index
    assert what in found[0][1]


def test_a_contradiction_is_reported_once_and_what_follows_is_still_checked() -> None:
    found = breaks(batch(1), batch(2, before="x"), batch(2, before="x"), batch(3, before="y"))
    assert [(index, what[:22]) for index, what in found] == [
        (2, "it gives version 1 of "),
        (6, "it gives version 2 of "),
    ]
