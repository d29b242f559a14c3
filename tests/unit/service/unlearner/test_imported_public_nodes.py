"""A model whose MLP was trained on public nodes is refused if anything of one was deleted, its label included."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from service.domain.states import RepairPolicy
from service.unlearner.deleted_parts import DeletedParts
from service.unlearner.importer import Importer
from service.unlearner.staged import ImportRefused

NOTHING = DeletedParts.nothing()


def check(part: str, row: int) -> None:
    context: Any = SimpleNamespace(placement=SimpleNamespace(policy=RepairPolicy.ALWAYS))
    wanted: Any = SimpleNamespace(exclude_deleted=True)
    store: Any = SimpleNamespace(manifest=SimpleNamespace(spec=SimpleNamespace(mlp_width=4)))
    base: Any = SimpleNamespace(public=np.array([True, False]))
    Importer(context)._check(wanted, store, base, DeletedParts(**{**vars(NOTHING), part: np.array([row])}))


@pytest.mark.parametrize("part", ["nodes", "feature_rows", "labels"])
def test_nothing_of_a_public_node_may_have_been_deleted(part: str) -> None:
    check(part, 1)
    with pytest.raises(ImportRefused, match="public"):
        check(part, 0)
