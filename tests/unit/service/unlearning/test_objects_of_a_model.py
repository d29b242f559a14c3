"""What a model takes in Python objects: as many for a large graph as for a small one."""

import gc
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import numpy as np

from model_store.datasets.load import load_dataset
from projector.forgetting.batch import Removal
from projector.forgetting.injection import inject_channel
from service.cli.evidence.leftovers import _in_model, _own_rows
from service.publication.writer import Publisher
from service.unlearning.placement import Placement
from service.unlearning.resident import Resident
from service.versions.published import committed_facts, published_model
from service.versions.told import Told
from tests.support.models.store_models import small_model
from tests.support.service.publications import view_of

SIZES = (2_000, 8_000)
#: More objects for the larger graph than this are too many: it has 6,000 nodes more, and a chunk.
MOST = 600


def most_objects(work: Callable[[], object]) -> int:
    """How many more objects there were at most, at the beginning and end of any call, while `work` was done."""
    seen: Counter[object] = Counter()
    gc.collect()
    before = most = sys.getallocatedblocks()

    def look(frame: FrameType, event: str, arg: object) -> None:
        nonlocal most
        # Of a call that is repeated for every node it is enough to look now and then.
        seen[frame.f_code] += 1
        if seen[frame.f_code] < 10 or not seen[frame.f_code] % 1_000:
            most = max(most, sys.getallocatedblocks())

    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(None)
    return most - before


def test_a_list_of_one_object_per_node_would_be_noticed() -> None:
    assert most_objects(lambda: np.arange(SIZES[0], SIZES[1]).tolist()) > MOST


def test_a_dataset_is_read_checked_and_changed_with_as_many_objects_for_any_number_of_nodes() -> None:
    def load(nodes: int) -> None:
        graph = load_dataset(f"synthetic:n={nodes},d=16,classes=3,seed=0", data_dirs=[])
        inject_channel(graph, ["1", "7"], extra_class=False)

    load(100)
    small, large = (most_objects(lambda nodes=nodes: load(nodes)) for nodes in SIZES)  # type: ignore[misc]
    assert large - small <= MOST


def test_a_model_is_loaded_deleted_from_published_and_searched_with_as_many_objects_for_any_number_of_nodes(
    tmp_path: Path,
) -> None:
    def serve(nodes: int, path: Path) -> None:
        store = stores[nodes]
        ref = store.current()
        base, version = store.load_base(), store.read_version(ref)
        resident = Resident.load(store.manifest, base, version, ref.version, Placement("cpu"))
        committed = resident.committed
        publisher = Publisher(path, path)
        model = published_model(store.manifest, committed)
        publisher.load(ref, model, committed.predictions(), committed_facts(committed, Told()), 1)
        assert view_of(publisher, ref).find("node 3") == 3
        rows = committed.node_ids.rows_of(["node 1", "node 3"])
        resident.commit(resident.prepare([Removal(nodes=rows)]))
        publisher.erase(ref, rows, np.empty((0, 2), dtype=np.int64))
        assert "node 3" not in committed.node_ids
        graph = store.load_base().graph
        features = graph.features[rows]
        own = _own_rows(store, graph, ["node 1", "node 3"], features)
        traces, _ = _in_model(path, graph, ["node 1", "node 3"], features, own)
        assert len(traces) == 4

    stores = {}
    for nodes in (100, *SIZES):
        ids = tuple(f"node {row}" for row in range(nodes))
        made = small_model(nodes=nodes, edges=2 * nodes, node_ids=ids)
        stores[nodes] = made.create(tmp_path / str(nodes), chunk_rows=4_096)
    paths = {nodes: tmp_path / f"home-{nodes}" for nodes in stores}
    for path in paths.values():
        (path / "run").mkdir(parents=True)
    serve(100, paths[100])
    small, large = (most_objects(lambda nodes=nodes: serve(nodes, paths[nodes])) for nodes in SIZES)  # type: ignore[misc]
    assert large - small <= MOST
