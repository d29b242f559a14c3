"""A crash at any point of a commit leaves the old or the new state of a store."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from model_store.base.erasure import Erasure
from model_store.store import Store
from model_store.versions import VersionRef
from tests.support.everyday import everyday
from tests.support.models.failing_disk import FailingDisk, Loss, stops
from tests.support.models.store_models import SmallModel, assert_same, difference, small_model
from tests.support.models.store_states import a_state, copied, everything_of, names_in, read_everything, same_state

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> tuple[SmallModel, Path]:
    """A store with an uncommitted and an abandoned version; do not change it."""
    path = tmp_path_factory.mktemp("before") / "m"
    model = small_model(nodes=9, edges=10)
    store = model.create(path)
    store.write_version(VersionRef(1, 1), a_state(model, 1), edges=0)
    return model, path


def commit(model: SmallModel, path: Path) -> None:
    store = Store.open(path)
    store.write_version(VersionRef(1, 1), a_state(model, 2), edges=0)
    store.set_current(VersionRef(1, 1))
    store.remove_versions(keep=VersionRef(1, 1), below_fencing=1)


def rewrite_beta(model: SmallModel, path: Path) -> None:
    store = Store.open(path)
    store.write_beta(model.beta + 1, model.label_beta + 1, version=1, fencing=1)
    # It removes earlier ones from the disk.
    store.erase(Erasure(), fencing=1)


@pytest.mark.parametrize("loss", everyday([Loss.TORN, Loss.ALL, Loss.SOME], Loss.ALL))
@pytest.mark.parametrize("action", [commit, rewrite_beta])
def test_a_crash_at_any_point_leaves_the_old_or_the_new_state_and_repeating_ends_the_same(
    before: tuple[SmallModel, Path], tmp_path: Path, action: Callable[[SmallModel, Path], None], loss: Loss
) -> None:
    model, original = before
    finished = copied(original, tmp_path / "finished")
    action(model, finished)
    allowed = [read_everything(original), read_everything(finished)]
    random = np.random.default_rng(0)
    times_each = 5 if loss is Loss.SOME and action is rewrite_beta else 1
    for stop_at in np.repeat(range(1000), times_each).tolist():
        path = copied(original, tmp_path)
        disk = FailingDisk(stop_at, loss)
        stopped = stops(lambda: action(model, path), disk)  # noqa: B023
        disk.lose(random)
        base, state = read_everything(path)
        for ref in Store.open(path).versions():
            Store.open(path).read_version(ref)
        if not stopped:
            assert names_in(path) == names_in(finished)
        assert any(difference(base, b) is None and same_state(state, s) for b, s in allowed), disk.log
        if Store.open(path).current() < VersionRef(1, 1) or action is rewrite_beta:
            action(model, path)
        else:
            Store.open(path).remove_versions(keep=VersionRef(1, 1), below_fencing=1)
        if action is commit:
            assert everything_of(path) == everything_of(finished)
        else:
            assert_same(Store.open(path).load_base(), allowed[1][0])
            assert len(names_in(path)) == len(names_in(finished))
        if not stopped:
            assert stop_at > 10
            return
    pytest.fail("the action never ended")


@pytest.mark.parametrize("loss", everyday([Loss.TORN, Loss.ALL, Loss.SOME], Loss.ALL))
def test_a_crash_while_a_store_is_created_leaves_none_or_all_of_it(tmp_path: Path, loss: Loss) -> None:
    model = small_model(nodes=9, edges=10)
    random = np.random.default_rng(0)
    for stop_at in range(1000):
        shutil.rmtree(tmp_path / "models", ignore_errors=True)
        path = tmp_path / "models" / "m"
        disk = FailingDisk(stop_at, loss)
        stopped = stops(lambda: model.create(path), disk)  # noqa: B023
        disk.lose(random)
        if path.exists():
            assert_same(Store.open(path).load_base(), model.base)
        else:
            assert stopped
            model.create(path)
        assert [entry.name for entry in path.parent.iterdir()] == ["m"]
        if not stopped:
            assert stop_at > 30
            return
    pytest.fail("the creation never ended")
