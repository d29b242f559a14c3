"""A growth keeps its promises through crashes and beside a second writer."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from model_store.base.base import Base
from model_store.base.erasure import Erasure
from model_store.store import Store
from model_store.versions import VersionRef
from projector.errors import ProjectorError
from tests.support.everyday import everyday
from tests.support.models.failing_disk import FailingDisk, Loss, stops
from tests.support.models.store_growth import an_edit, carry_out, commit, joined, rebuilt
from tests.support.models.store_models import assert_same, difference, small_model, without
from tests.support.models.store_states import copied, names_in, rows

pytestmark = pytest.mark.usefixtures("quick_disk")

#: Everyday runs stop at every eighth operation of a file; the sweep at each.
STOPS = pytest.mark.parametrize("every", everyday([1, 8], 8))
ERASED = Erasure(nodes=rows(2, 9), edges=np.array([[0, 1]]))
REF = VersionRef(2, 1)


class Grown:
    """A store whose current version has an edit that is still to be applied; not to be changed."""

    def __init__(self, path: Path, layout: str) -> None:
        self.path = path
        random = np.random.default_rng(5)
        model = small_model(layout, nodes=11, features=3, edges=12, seed=3)
        store = model.create(path, chunk_rows=4)
        # An earlier growth, of which this one replaces something.
        first = an_edit(model.base, random, new=3)
        self.before = commit(store, VersionRef(1, 1), model.base, first)
        carry_out(store, VersionRef(1, 1), self.before)
        self.edit = an_edit(without(self.before, ERASED), random, new=2)
        self.after = without(commit(store, REF, self.before, self.edit, ERASED), ERASED)
        self.read = joined(self.before, self.edit)

    def carries_out(self, path: Path, fencing: int = 1) -> Callable[[], None]:
        return lambda: finish(Store.open(path), self.after, fencing)


def finish(store: Store, expected: Base, fencing: int) -> None:
    """Finish the version, as every start of an unlearner does."""
    if store.stale_coefficients(REF):
        store.write_beta(expected.beta, expected.label_beta, version=REF.version, fencing=fencing)
    store.erase(ERASED, fencing=fencing, keep=REF)
    store.grow(REF, fencing=fencing)


@pytest.fixture(scope="module", params=everyday(["dense", "csr"], "csr"))
def grown(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Grown:
    return Grown(tmp_path_factory.mktemp("grown") / "m", request.param)


# The writer that grew it before appends to its own files; another one copies them.
@pytest.mark.parametrize(
    ("fencing", "loss"),
    everyday([(fencing, loss) for fencing in (1, 2) for loss in (Loss.TORN, Loss.ALL, Loss.SOME)], (1, Loss.SOME)),
)
@STOPS
def test_a_crash_anywhere_is_no_damage_and_repeating_it_ends_the_same(
    grown: Grown, tmp_path: Path, fencing: int, loss: Loss, every: int
) -> None:
    random = np.random.default_rng(0)
    finished = copied(grown.path, tmp_path / "finished")
    grown.carries_out(finished, fencing)()
    assert_same(Store.open(finished).load_base(), grown.after)
    pending = 0
    for stop_at in range(0, 1000, every):
        path = copied(grown.path, tmp_path)
        disk = FailingDisk(stop_at, loss)
        stopped = stops(grown.carries_out(path, fencing), disk)
        disk.lose(random)
        store = Store.open(path)
        pending += store.is_ungrown(REF)
        found = without(store.load_base(), ERASED)
        assert difference(without_beta(found), without_beta(grown.after)) is None, disk.log
        if not stopped:
            assert names_in(path) == names_in(finished)
            assert_same(found, grown.after)
        # A new session, and one that goes on after an error.
        grown.carries_out(path, fencing + stop_at % 2)()
        assert_same(Store.open(path).load_base(), grown.after)
        assert not store.is_ungrown(REF)
        assert not store.is_erasing()
        assert len(names_in(path)) == len(names_in(finished)), disk.log
        sizes = {file.name.split("-")[0]: file.stat().st_size for file in (path / "base").iterdir()}
        assert sizes == {file.name.split("-")[0]: file.stat().st_size for file in (finished / "base").iterdir()} | {
            "index": sizes["index"]
        }
        if not stopped:
            assert pending > 20 // every
            return
    pytest.fail("the growth never ended")


def without_beta(base: Base) -> Base:
    return Base(base.graph, base.beta * 0, base.label_beta * 0, base.public)


@STOPS
def test_a_writer_that_goes_on_after_its_successor_took_over_does_no_harm(
    grown: Grown, tmp_path: Path, every: int
) -> None:
    later, ref = Erasure(nodes=rows(0, 11, 14)), VersionRef(3, 3)
    edit = an_edit(without(grown.after, later), np.random.default_rng(8), new=4)
    expected = without(rebuilt(joined(without(grown.after, later), edit), ref), later)

    def successor(path: Path) -> None:
        store = Store.open(path)
        finish(store, grown.after, 3)
        carry_out(store, ref, commit(store, ref, grown.after, edit, later), later)

    for stop_at in range(0, 1000, every):
        path = copied(grown.path, tmp_path)
        disk = FailingDisk(stop_at, at_stop=partial(successor, path))
        try:
            with disk.mounted():
                grown.carries_out(path)()
        except (ProjectorError, FileNotFoundError):
            assert disk.stop_at is None
        if disk.stop_at is not None:
            assert stop_at > 20
            return
        assert_same(Store.open(path).load_base(), expected)
        Store.open(path).erase(Erasure(nodes=rows(1)), fencing=3)
        assert_same(Store.open(path).load_base(), without(expected, Erasure(nodes=rows(1))))
        assert not [name for name in names_in(path) if Path(name).name.startswith(".")]
    pytest.fail("the writer never ended")


@STOPS
def test_a_reader_beside_a_growth_sees_the_base_with_what_joins(grown: Grown, tmp_path: Path, every: int) -> None:
    def look(path: Path, seen: list[Base]) -> None:
        seen.append(without(Store.open(path).load_base(), ERASED))

    for stop_at in range(0, 1000, every):
        path = copied(grown.path, tmp_path)
        seen: list[Base] = []
        disk = FailingDisk(stop_at, at_stop=partial(look, path, seen))
        with disk.mounted():
            grown.carries_out(path)()
        if not seen:
            assert stop_at > 20
            return
        assert difference(without_beta(seen[0]), without_beta(grown.after)) is None
    pytest.fail("the growth never ended")
