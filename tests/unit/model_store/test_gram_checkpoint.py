"""Checkpoints of the Gram factors: used for exactly the version they were written for, otherwise ignored by name."""

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from model_store import gram_checkpoint
from model_store.build import build_model
from model_store.datasets.load import load_dataset
from model_store.gram_checkpoint import CheckpointUnusable
from model_store.store import Store
from projector.forgetting.batch import Removal
from projector.forgetting.factors import whole
from projector.forgetting.gram import Gram, factorise
from projector.network.spec import ModelSpec
from service.unlearner.committed import version_state
from service.unlearner.loading import Checkpointer
from service.unlearner.placement import Placement
from service.unlearner.resident import Resident
from tests.support.device import DEVICE

DIGEST = "ab" * 32


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    graph = load_dataset("synthetic:n=120,d=30,classes=3,seed=3", data_dirs=[])
    folder = tmp_path_factory.mktemp("trained") / "model"
    build_model(graph, ModelSpec(), name="small", dataset="synthetic", split="full").write(folder)
    return folder


def loaded(store: Store, gram: Gram | None = None) -> Resident:
    return Resident.load(
        store.manifest, store.load_base(), store.read_version(store.current()), 0, Placement(DEVICE), gram=gram
    )


def written(folder: Path, gram: Gram, digest: str = DIGEST) -> Path:
    for _ in gram_checkpoint.write_steps(folder, gram, version_digest=digest):
        assert not (folder / gram_checkpoint.FILE).exists()
    return folder / gram_checkpoint.FILE


def read(folder: Path, digest: str = DIGEST) -> Gram | None:
    return gram_checkpoint.read(folder, version_digest=digest, device=DEVICE)


def test_what_was_written_is_read_bit_for_bit_and_used(trained: Path, tmp_path: Path) -> None:
    store = Store.open(trained)
    computed = loaded(store)
    gram = computed.committed.state.features.gram
    assert read(tmp_path) is None
    assert written(tmp_path, gram).stat().st_mode & 0o777 == 0o600
    kept = read(tmp_path)
    assert kept is not None
    assert torch.equal(whole(kept.M), whole(gram.M))
    assert torch.equal(whole(kept.M_pinv), whole(gram.M_pinv))
    numbers = ("rank", "sigma_ref_squared", "condition_number", "rank_tolerance")
    assert [getattr(kept, name) for name in numbers] == [getattr(gram, name) for name in numbers]
    again = loaded(store, kept)
    assert (again.committed.from_checkpoint, computed.committed.from_checkpoint) == (True, False)
    assert np.array_equal(again.committed.predictions().probabilities, computed.committed.predictions().probabilities)


@pytest.mark.parametrize("how", ["truncated", "longer", "bit flipped", "empty", "of another version"])
def test_a_damaged_checkpoint_or_one_of_another_version_is_named(trained: Path, tmp_path: Path, how: str) -> None:
    file = written(tmp_path, loaded(Store.open(trained)).committed.state.features.gram)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    damaged: dict[str, bytes] = {
        "truncated": file.read_bytes()[:-8],
        "longer": file.read_bytes() + b"1",
        "bit flipped": bytes(content),
        "empty": b"",
    }
    file.write_bytes(damaged.get(how, file.read_bytes()))
    with pytest.raises(CheckpointUnusable, match=str(file)):
        read(tmp_path, "cd" * 32 if how == "of another version" else DIGEST)


def test_factors_that_do_not_fit_the_rows_are_computed_anew(trained: Path) -> None:
    store = Store.open(trained)
    computed = loaded(store)
    gram = computed.committed.state.features.gram
    in_span = computed.committed.state.features.in_span.copy()
    in_span[7] = False
    older = factorise(computed.committed.features.rows, in_span, sigma_ref_squared=gram.sigma_ref_squared)
    # One row less with the same rank: only the rows reveal it.
    assert older.rank == gram.rank
    resident = loaded(store, older)
    assert not resident.committed.from_checkpoint
    assert torch.equal(whole(resident.committed.state.features.gram.M), whole(gram.M))


class Writer:
    """The parts of a `VersionWriter` that a checkpointer needs."""

    def __init__(self, resident: Resident, steps: Callable[[], Any]) -> None:
        self.resident = resident
        self.checkpoint_steps = steps


class Here:
    """The parts of a `Context`: blocking work runs immediately."""

    async def run(self, work: Callable[[], Any]) -> Any:
        return work()


def checkpointer_of(resident: Resident, steps: Callable[[], Any], **options: Any) -> Checkpointer:
    context: Any = Here()
    writer: Any = Writer(resident, steps)
    return Checkpointer(context, writer, **options)


def test_a_checkpoint_is_written_once_a_version_has_settled_and_an_overtaken_one_is_given_up(
    trained: Path, tmp_path: Path
) -> None:
    resident = loaded(Store.open(trained))
    now = [0.0]
    begun: list[int] = []

    def steps() -> Any:
        begun.append(resident.committed.state.version)
        for _ in gram_checkpoint.write_steps(tmp_path, resident.committed.state.features.gram, version_digest=DIGEST):
            now[0] += 1.0
            yield

    checkpointer = checkpointer_of(resident, steps, least_features=1, quiet_s=5.0, clock=lambda: now[0])
    assert not checkpointer.due
    now[0] += 5.0
    assert checkpointer.due
    asyncio.run(checkpointer.step())
    assert not (tmp_path / gram_checkpoint.FILE).exists()
    resident.commit(resident.prepare([Removal(nodes=np.array([7]))]))
    assert not checkpointer.due
    now[0] += 5.0
    while checkpointer.due:
        asyncio.run(checkpointer.step())
    assert begun == [0, 1]
    kept = read(tmp_path)
    assert kept is not None
    assert torch.equal(whole(kept.M), whole(resident.committed.state.features.gram.M))
    narrow = checkpointer_of(resident, steps, quiet_s=0.0, clock=lambda: now[0])
    assert not narrow.due


def test_a_disk_that_is_full_leaves_the_version_without_a_checkpoint(trained: Path) -> None:
    def full() -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")
        yield

    checkpointer = checkpointer_of(loaded(Store.open(trained)), full, least_features=1, quiet_s=0.0)
    assert checkpointer.due
    asyncio.run(checkpointer.step())
    assert not checkpointer.due


def test_a_checkpoint_leaves_the_disk_with_its_version(trained: Path, tmp_path: Path) -> None:
    import shutil

    from model_store.versions import VersionRef

    shutil.copytree(trained, tmp_path / "model")
    store = Store.open(tmp_path / "model")
    resident = loaded(store)
    first = store.current()
    file = written(store.folder_of(first), resident.committed.state.features.gram, store.version_digest(first))
    # Left by a start that died while writing.
    (store.folder_of(first) / ".gram").write_bytes(b"half")
    assert Store.open(store.path).read_version(first).rank == resident.committed.state.features.gram.rank
    resident.commit(resident.prepare([Removal(nodes=np.array([7]))]))
    second = VersionRef(1, 1)
    store.write_version(second, version_state(resident.committed.state), edges=0)
    store.set_current(second)
    store.remove_versions(keep=second, below_fencing=1)
    assert not file.exists()
    assert [path.name for path in (store.path / "versions").iterdir()] == ["1-1"]
