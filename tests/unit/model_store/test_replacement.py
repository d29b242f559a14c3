"""Replacing the served model with a new one, by a process that is overtaken midway."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_store import replacement as replacement_module
from model_store.base import base
from model_store.base.erasure import Erasure
from model_store.base.index import Index
from model_store.disk import durable
from model_store.errors import StoreDamaged
from model_store.replacement import Replacement, finish_move
from model_store.store import Store
from model_store.versions import StoreConflict
from tests.support.models.store_models import small_model
from tests.support.models.store_states import everything_of

pytestmark = pytest.mark.usefixtures("quick_disk")

IMPORT = "00000000-0000-0000-0000-000000000005"


@pytest.fixture
def staged(tmp_path: Path) -> Replacement:
    """A served model, and a new one staged beside it."""
    small_model().create(tmp_path / "m")
    replacement = Replacement(tmp_path / "m", IMPORT)
    replacement.stage(lambda folder: small_model().create(folder))
    return replacement


def overtake(patch: pytest.MonkeyPatch, replacement: Replacement, target: Path, *then: Callable[[], None]) -> None:
    """Let a successor install and finish the import just before the next rename to `target`; then do `then`."""

    def late(source: Path, name: Path) -> None:
        if name == target:
            patch.setattr(replacement_module, "rename", durable.rename)
            finish_move(replacement.served)
            replacement.install()
            replacement.erase_replaced()
            patch.setattr(replacement_module, "rename", after)
        durable.rename(source, name)

    def after(source: Path, name: Path) -> None:
        for step in then:
            step()
        durable.rename(source, name)

    patch.setattr(replacement_module, "rename", late)


@pytest.mark.parametrize("stage", ["replaced", "served"])
def test_one_that_was_overtaken_before_a_rename_leaves_the_new_model_in_its_place(
    staged: Replacement, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    new = everything_of(staged.staged)
    overtake(monkeypatch, staged, getattr(staged, stage))
    with pytest.raises(FileNotFoundError):
        staged.install()
    assert everything_of(staged.served) == new
    assert not staged.replaced.exists()
    Store.open(staged.served)


def test_a_crash_of_one_that_has_taken_the_new_model_away_is_mended(
    staged: Replacement, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(Exception):
        pass

    def kill() -> None:
        raise Killed

    new = everything_of(staged.staged)
    overtake(monkeypatch, staged, staged.replaced, kill)
    with pytest.raises(Killed):
        staged.install()
    monkeypatch.undo()
    assert not staged.served.exists()
    finish_move(staged.served)
    assert everything_of(staged.served) == new
    assert not staged.replaced.exists()


@pytest.mark.parametrize(
    ("of", "step"), [(base, "plan"), (base, "replace_file"), (base, "carry_out"), (Index, "closed")]
)
def test_an_erasure_that_goes_on_after_its_model_was_replaced_changes_nothing_of_the_new_one(
    staged: Replacement, monkeypatch: pytest.MonkeyPatch, of: object, step: str
) -> None:
    slow, new = Store.open(staged.served), Store.open(staged.staged)
    new.claim_base(fencing=2)
    before = everything_of(staged.staged)
    original = getattr(of, step)

    def overtaken(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(of, step, original)
        staged.install()
        staged.erase_replaced()
        return original(*arguments, **named)

    monkeypatch.setattr(of, step, overtaken)
    with contextlib.suppress(StoreDamaged, StoreConflict):
        slow.erase(Erasure(nodes=np.array([0, 1])), fencing=1)
    served = Store.open(staged.served)
    assert served.load_base().graph.node_ids[0] != ""
    served.tidy(keep=served.current(), fencing=2)
    assert everything_of(staged.served) == before
