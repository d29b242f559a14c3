"""No crash, second writer or concurrent reader changes the promise of an erasure."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from model_store.base.base import Base
from model_store.base.erasure import Erasure
from model_store.errors import NotAStore, StoreDamaged
from model_store.store import Store
from model_store.versions import StoreConflict
from projector.errors import ProjectorError
from tests.support.everyday import everyday
from tests.support.models.failing_disk import FailingDisk, Loss, stops
from tests.support.models.store_models import assert_same, difference, small_model, without
from tests.support.models.store_states import copied, everything_in, names_in, rows, some_edges

pytestmark = pytest.mark.usefixtures("quick_disk")


# Crashes.


@pytest.fixture(scope="module", params=everyday(["dense", "csr"], "csr"))
def half_erased(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Base, Path]:
    """A store from which a node and an edge have already been erased; do not change it."""
    path = tmp_path_factory.mktemp("half") / "m"
    model = small_model(request.param, nodes=11, features=3, edges=12, seed=3)
    store = model.create(path, chunk_rows=4)
    first = Erasure(nodes=rows(6), edges=some_edges(model, 1))
    store.erase(first, fencing=1)
    return without(model.base, first), path


SECOND = Erasure(nodes=rows(2, 9), feature_rows=rows(4), edges=np.array([[0, 1]]))


def erases(path: Path, erasure: Erasure = SECOND, fencing: int = 2) -> Callable[[], None]:
    return lambda: Store.open(path).erase(erasure, fencing=fencing)


def all_stops(
    action: Callable[[Path], Callable[[], None]], original: Path, tmp_path: Path, loss: Loss
) -> Iterator[tuple[Path, FailingDisk]]:
    """Yield, for each file change of `action`, a copy of the store on which it was stopped there.

    On the last one it was not stopped, and unsynced changes are lost.
    """
    random = np.random.default_rng(0)
    for stop_at in range(1000):
        path = copied(original, tmp_path)
        disk = FailingDisk(stop_at, loss)
        stopped = stops(action(path), disk)
        disk.lose(random)
        yield path, disk
        if not stopped:
            assert stop_at > 20
            return
    pytest.fail("the action never ended")


@pytest.mark.parametrize("loss", everyday([Loss.TORN, Loss.ALL, Loss.SOME], Loss.ALL))
def test_a_crash_anywhere_in_an_erasure_is_no_damage_and_repeating_it_ends_the_same(
    half_erased: tuple[Base, Path], tmp_path: Path, loss: Loss
) -> None:
    before, original = half_erased
    after = without(before, SECOND)
    finished = copied(original, tmp_path / "finished")
    erases(finished)()
    pending = 0
    for path, disk in all_stops(erases, original, tmp_path, loss):
        store = Store.open(path)
        interrupted = store.is_erasing()
        found = store.load_base()
        if not interrupted:
            assert difference(found, before) is None or difference(found, after) is None, disk.log
        else:
            pending += 1
            assert difference(found, after) is None, disk.log
        if not disk.stopped:
            assert names_in(path) == names_in(finished)
            assert difference(found, after) is None
        store.erase(SECOND, fencing=2)
        assert_same(Store.open(path).load_base(), after)
        assert not store.is_erasing()
        assert everything_in(path / "versions") == everything_in(finished / "versions")
        assert names_in(path) == names_in(finished), disk.log
    assert pending > 10


@pytest.mark.slow
@pytest.mark.parametrize("loss", [Loss.TORN, Loss.SOME])
def test_a_crash_while_an_interrupted_erasure_is_resumed_is_no_damage_either(
    half_erased: tuple[Base, Path], tmp_path: Path, loss: Loss
) -> None:
    before, original = half_erased
    interrupted = copied(original, tmp_path / "interrupted")
    disk = FailingDisk(stop_at=12)
    assert stops(erases(interrupted), disk)
    assert Store.open(interrupted).is_erasing()
    more = Erasure(nodes=rows(10))
    final = without(without(before, SECOND), more)
    for path, _ in all_stops(lambda path: erases(path, more, fencing=3), interrupted, tmp_path, loss):
        Store.open(path).load_base()
        Store.open(path).erase(more, fencing=3)
        assert_same(Store.open(path).load_base(), final)


def interrupted_store(original: Path, tmp_path: Path) -> Path:
    """Return a store in the middle of overwriting the targets of `SECOND`."""
    path = copied(original, tmp_path)
    whole = FailingDisk()
    uninterrupted = erases(copied(original, tmp_path / "whole"))
    with whole.mounted():
        uninterrupted()
    overwriting = [place for place, (operation, _, _) in enumerate(whole.log) if operation == "pwrite"]
    assert stops(erases(path), FailingDisk(stop_at=overwriting[len(overwriting) // 2]))
    return path


def refused(action: Callable[[], object]) -> str | None:
    """Return why the store refuses to be read, or None if it does not."""
    try:
        action()
    except (StoreDamaged, NotAStore) as error:
        return error.detail
    return None


def resumed(path: Path, tmp_path: Path) -> Base:
    """Return the base of a copy of the store after its interrupted erasure was finished."""
    store = Store.open(copied(path, tmp_path / "copy"))
    store.erase(SECOND, fencing=2)
    return store.load_base()


def test_damage_beside_an_open_erasure_is_still_found(half_erased: tuple[Base, Path], tmp_path: Path) -> None:
    _, original = half_erased
    path = interrupted_store(original, tmp_path)
    after = Store.open(path).load_base()
    random = np.random.default_rng(2)
    found = healed = 0
    for file in sorted((path / "base").iterdir()):
        content = file.read_bytes()
        for place in set(random.integers(0, len(content), 5).tolist()):
            altered = bytearray(content)
            altered[place] ^= 0x10
            file.write_bytes(altered)
            refusal = refused(lambda: Store.open(path).load_base())
            if refusal is None:
                healed += 1
                assert_same(Store.open(path).load_base(), after)
            else:
                found += 1
                assert file.name.split("-")[0] in refusal
                assert refused(lambda: resumed(path, tmp_path)) is not None
        file.write_bytes(content)
    assert found > healed > 0
    assert_same(resumed(path, tmp_path), after)


def test_an_erasure_that_was_interrupted_is_finished_before_the_next(
    half_erased: tuple[Base, Path], tmp_path: Path
) -> None:
    before, original = half_erased
    path = interrupted_store(original, tmp_path)
    Store.open(path).erase(Erasure(nodes=rows(10)), fencing=3)
    assert_same(Store.open(path).load_base(), without(without(before, SECOND), Erasure(nodes=rows(10))))
    path = interrupted_store(original, tmp_path)
    store = Store.open(path)
    after = without(before, SECOND)
    rebuilt = replace(after, beta=after.beta * 2, label_beta=after.label_beta * 3)
    store.write_beta(rebuilt.beta, rebuilt.label_beta, version=1, fencing=3)
    assert_same(store.load_base(), rebuilt)


# A second writer.


def test_a_writer_whose_fencing_number_was_overtaken_erases_nothing(tmp_path: Path) -> None:
    store = small_model().create(tmp_path / "m")
    store.erase(Erasure(nodes=rows(1)), fencing=5)
    before = everything_in(tmp_path / "m")
    with pytest.raises(StoreConflict, match="fencing number 5, above this writer's 4"):
        store.erase(Erasure(nodes=rows(2)), fencing=4)
    assert everything_in(tmp_path / "m") == before


def rewrites_beta(path: Path) -> Callable[[], None]:
    store = Store.open(path)

    def rewrite() -> None:
        base = store.load_base()
        store.write_beta(base.beta, base.label_beta, version=1, fencing=2)

    return rewrite


@pytest.mark.parametrize("action", everyday([erases, rewrites_beta], erases))
@pytest.mark.parametrize("rewrites", everyday([False, True], False))
def test_a_writer_that_goes_on_after_its_successor_took_over_does_no_harm(
    half_erased: tuple[Base, Path], tmp_path: Path, action: Callable[[Path], Callable[[], None]], rewrites: bool
) -> None:
    before, original = half_erased
    later = Erasure(nodes=rows(0, 5))
    expected = without(without(before, SECOND), later)
    for stop_at in range(1000):
        path = copied(original, tmp_path)

        def successor(path: Path = path) -> None:
            store = Store.open(path)
            store.erase(SECOND, fencing=3)
            store.erase(later, fencing=3)
            if rewrites:
                base = store.load_base()
                store.write_beta(base.beta, base.label_beta, version=1, fencing=3)

        disk = FailingDisk(stop_at, at_stop=successor)
        overtaken = action(path)
        try:
            with disk.mounted():
                overtaken()
        except (ProjectorError, FileNotFoundError):
            assert disk.stop_at is None
        if disk.stop_at is not None:
            assert stop_at > 10
            return
        assert_same(Store.open(path).load_base(), expected)
        Store.open(path).erase(Erasure(nodes=rows(1)), fencing=3)
        assert_same(Store.open(path).load_base(), without(expected, Erasure(nodes=rows(1))))
        assert not [name for name in names_in(path) if Path(name).name.startswith((".", "erasing"))]
    pytest.fail("the writer never ended")


def test_a_reader_beside_an_erasure_sees_the_base_before_or_after_it(
    half_erased: tuple[Base, Path], tmp_path: Path
) -> None:
    def look(path: Path, seen: list[Base]) -> None:
        seen.append(Store.open(path).load_base())

    before, original = half_erased
    after = without(before, SECOND)
    for stop_at in range(1000):
        path = copied(original, tmp_path)
        seen: list[Base] = []
        disk = FailingDisk(stop_at, at_stop=partial(look, path, seen))
        with disk.mounted():
            erases(path)()
        if not seen:
            assert stop_at > 20
            return
        assert difference(seen[0], before) is None or difference(seen[0], after) is None
    pytest.fail("the erasure never ended")
