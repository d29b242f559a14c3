"""A real log of batches, repairs and an import: its weights follow from one another, and no re-signed lie does."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from service.log.canonical import canonical
from service.log.checkpoints import Signer
from service.log.export import verify_export
from service.log.export_pages import export_lines
from service.log.signing_keys import LogKeys
from service.log.verification import Report
from service.settings import Settings
from tests.support.evidence.log_lines import Line, again, leaf_at, saying
from tests.support.service.db_harness import until
from tests.support.service.imports import asked, ended
from tests.support.service.imports import trained as another_model
from tests.support.service.repairs import Gate, repaired
from tests.support.service.running import running

#: The digest of weights that never existed.
OTHER = "a" * 64


def verified(lines: list[Line], signer: Signer) -> Report:
    return verify_export(json.loads(json.dumps(lines)), [signer.public])


def moved_to(line: Line, index: int) -> str:
    """Return the text of a leaf at another place."""
    return canonical(json.loads(line["leaf"]) | {"index": index}).decode()


async def test_weights_that_do_not_follow_from_one_another_are_found_in_a_log_signed_anew(
    deferring: Settings, tmp_path: Path, gate: Gate, together: Callable[[int], None]
) -> None:
    dataset = "synthetic:n=160,d=12,classes=3,seed=4"
    async with running(deferring) as lethe:
        await until(lethe.is_ready)
        together(2)
        batch = [await lethe.delete("12"), await lethe.delete("57", "3")]
        for accepted in batch:
            await lethe.completed(accepted)
        gate.is_open = True
        for accepted in batch:
            await repaired(lethe, accepted)
        await repaired(lethe, await lethe.delete("20"))
        gate.is_open = False
        await lethe.completed(await lethe.delete("21"))
        new = another_model(tmp_path / "another", dataset=dataset)
        await ended(deferring, await asked(deferring, new, exclude_deleted=True))
        await lethe.completed(await lethe.delete("30"))
        lines = [line async for page in export_lines(lethe.services.engine) for line in page]
    [signer] = LogKeys.open(deferring.home / "keys").signers().values()

    leaves = [line for line in lines if "leaf" in line]
    kinds = [line["event"]["type"] for line in leaves]
    assert kinds == [
        *("applied", "applied", "completed", "completed", "repaired", "repaired"),
        *("applied", "completed", "repaired"),
        *("applied", "completed", "imported", "not_repaired"),
        *("applied", "completed"),
    ]
    honest = verified(again(leaves, signer, [len(leaves)]), signer)
    assert (honest.findings, honest.leaves) == ([], 15)
    assert [index for index, _ in honest.unrequested] == [11]

    def lied(victims: dict[int, Any], member: str) -> list[tuple[int | None, str]]:
        """Return the findings after leaves, by index, state another value and everything is recomputed and signed
        again.
        """
        changed = [dict(line) for line in leaves]
        for index, value in victims.items():
            details = changed[index]["event"]["details"]
            changed[index] = saying(changed[index], {"details": details | {member: value}})
        return [(one.index, one.what) for one in verified(again(changed, signer, [len(changed)]), signer).findings]

    # One of two requests of a batch; the whole batch, whose repair began elsewhere; a repair; an import.
    assert lied({1: OTHER}, "weights_sha256_after") == [
        (1, "it gives version 1 of small different weights than leaf 0")
    ]
    assert lied(dict.fromkeys((0, 1, 2, 3, 4), OTHER), "weights_sha256_after")[0][0] == 5
    assert lied(dict.fromkeys((4, 5), OTHER), "repair_weights_sha256") == [
        (6, "it gives version 2 of small different weights than leaf 4")
    ]
    assert lied({11: OTHER}, "weights_sha256_before")[0][0] == 11
    assert lied({11: OTHER}, "weights_sha256_after")[0][0] == 13
    # Weights called retrained that are not, by the leaf's own bound and tolerance.
    for index in (4, 8, 11):
        assert [found for found, _ in lied({index: 2e-6}, "distance_bound_after_relative")] == [index]
        [(found, what)] = lied({index: 1e-3}, "repair_tolerance")
        assert (found, what) == (index, "its tolerance is 0.001; tolerances above 1e-06 do not count as retrained")
    # A deletion missing from the log: the import continues from weights that nothing made.
    left = [line for line in leaves if line["index"] not in (9, 10, 12)]
    moved = [line | {"index": place, "leaf": moved_to(line, place)} for place, line in enumerate(left)]
    [hidden] = verified(again(moved, signer, [len(moved)]), signer).findings
    assert (hidden.index, "no leaf explains how it followed version 4" in hidden.what) == (9, True)
    assert leaf_at(moved, 9)["event"]["type"] == "imported"
