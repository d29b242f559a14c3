"""Predictions: atomic views, forgotten nodes, suspension."""

import gc
import math
import threading

import numpy as np
import pytest
import scipy.sparse as sp

from projector.graph.edges import Edges
from service.boottime import boottime
from service.domain.snapshot import Snapshot
from service.errors import Unavailable
from service.reader.predictions import Prediction, Reader

IDS = ("a", "b", "c", "d")
CLASSES = ("red", "green")
#: a - b - c, and d alone.
ADJACENCY = sp.csr_array(np.array([[0.0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]))


def snapshot(version: int, *dead: int, fill: float = 0.25) -> Snapshot:
    probabilities = np.tile([fill, 1.0 - fill], (len(IDS), 1))
    live = np.ones(len(IDS), dtype=np.bool_)
    live[list(dead)] = False
    probabilities[~live] = 0.0
    return Snapshot(version, probabilities, live, Edges(ADJACENCY, live))


def test_a_prediction_names_the_most_probable_class_and_its_version() -> None:
    reader = Reader(IDS, CLASSES, snapshot(7))
    assert reader.predict("b") == Prediction("b", "green", {"red": 0.25, "green": 0.75}, 7)
    assert (reader.version, reader.live_nodes, reader.row("b"), reader.knows("b")) == (7, 4, 1, True)


def test_equally_probable_classes_give_the_first() -> None:
    prediction = Reader(IDS, CLASSES, snapshot(0, fill=0.5)).predict("a")
    assert prediction is not None
    assert prediction.label == "red"


def test_an_unknown_id_has_no_prediction() -> None:
    reader = Reader(IDS, CLASSES, snapshot(0))
    assert reader.predict("z") is None
    assert reader.row("z") is None
    assert not reader.knows("z")


def test_edges_are_looked_up_by_ids_in_either_order() -> None:
    reader = Reader(IDS, CLASSES, snapshot(0))
    pairs = [("a", "b"), ("b", "a"), ("a", "c"), ("d", "d"), ("a", "z"), ("z", "z"), ("c", "b")]
    assert reader.have_edges(pairs) == [True, True, False, False, False, False, True]
    assert reader.have_edges([]) == []


def test_edges_go_with_their_version_and_their_nodes() -> None:
    reader = Reader(IDS, CLASSES, snapshot(0))
    reader.publish(snapshot(1, 0))
    assert reader.have_edges([("a", "b"), ("b", "c")]) == [False, True]
    later = snapshot(2, 0)
    without = ADJACENCY.copy()
    without[[1, 2], [2, 1]] = 0.0
    reader.publish(Snapshot(2, later.probabilities, later.live, Edges(without, later.live)))
    assert reader.have_edges([("b", "c")]) == [False]
    reader.suspend("why")
    assert reader.have_edges([("b", "c")]) == [False]
    with pytest.raises(Unavailable):
        Reader.empty("the model is being loaded").have_edges([("a", "b")])


def test_a_forgotten_node_is_unknown_and_nothing_of_it_is_retained() -> None:
    reader = Reader(IDS, CLASSES, snapshot(0))
    reader.publish(snapshot(1, 1))
    assert reader.predict("b") is None
    assert not reader.knows("b")
    assert (reader.version, reader.live_nodes) == (1, 3)
    assert "b" not in reachable_strings(reader)
    assert reader.predict_many(["a", "b", "z"])[2] == ["b", "z"]


def test_probabilities_of_a_forgotten_node_are_dropped_even_when_the_snapshot_still_holds_them() -> None:
    live = np.array([True, False, True, True])
    reader = Reader(IDS, CLASSES, snapshot(0))
    reader.publish(Snapshot(1, np.full((4, 2), 0.625), live, Edges.none(4)))
    assert not reader._view.probabilities[1].any()
    assert reader._view.probabilities[0].tolist() == [0.625, 0.625]


def test_nodes_already_gone_at_start_are_unknown_even_with_empty_ids() -> None:
    reader = Reader(("a", "", "", "d"), CLASSES, snapshot(3, 1, 2))
    assert not reader.knows("")
    assert reader.predict("") is None
    assert reader.live_nodes == 2


def test_many_predictions_are_of_one_version_in_the_order_asked() -> None:
    version, predictions, missing = Reader(IDS, CLASSES, snapshot(5)).predict_many(["c", "nobody", "a", "c"])
    assert version == 5
    assert [prediction.node for prediction in predictions] == ["c", "a", "c"]
    assert missing == ["nobody"]


def test_a_suspended_reader_refuses_with_the_reason_until_resumed() -> None:
    reader = Reader(IDS, CLASSES, snapshot(0))
    reader.suspend("the commit was not answered")
    with pytest.raises(Unavailable, match="the commit was not answered"):
        reader.predict("a")
    with pytest.raises(Unavailable):
        reader.predict_many(["a"])
    assert reader.knows("a")
    reader.publish(snapshot(1, 0))
    with pytest.raises(Unavailable):
        reader.predict("b")
    reader.resume()
    assert reader.predict("a") is None
    assert reader.predict("b") is not None


def test_predictions_end_with_the_lease_and_go_on_once_it_is_extended() -> None:
    reader = Reader(IDS, CLASSES, snapshot(1))
    reader.extend(boottime() + 3600.0)
    assert reader.predict("a") is not None
    reader.extend(boottime())
    for asked in (lambda: reader.predict("a"), lambda: reader.predict_many(())):
        with pytest.raises(Unavailable, match="lease on the model was not renewed"):
            asked()
    # What is in the model is known all the same, and a load alone does not extend the lease.
    assert reader.knows("a")
    reader.load(IDS, CLASSES, snapshot(2), public=frozenset())
    with pytest.raises(Unavailable, match="lease on the model"):
        reader.predict("a")
    reader.extend(math.inf)
    assert reader.predict("a") is not None


def test_a_reader_never_goes_back() -> None:
    reader = Reader(IDS, CLASSES, snapshot(4, 2))
    with pytest.raises(ValueError, match="older"):
        reader.publish(snapshot(3, 2))
    with pytest.raises(ValueError, match="forgotten"):
        reader.publish(snapshot(5))
    with pytest.raises(ValueError, match="shape"):
        reader.publish(Snapshot(5, np.zeros((3, 2)), np.ones(3, dtype=np.bool_), Edges.none(3)))
    assert reader.version == 4


def test_ids_that_do_not_fit_the_model_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        Reader(IDS[:3], CLASSES, snapshot(0))
    with pytest.raises(ValueError, match="same id"):
        Reader(("a", "a", "c", "d"), CLASSES, snapshot(0))
    with pytest.raises(ValueError, match="same n"):
        Snapshot(0, np.zeros((4, 2)), np.ones(3, dtype=np.bool_), Edges.none(4))
    with pytest.raises(ValueError, match="same n"):
        Snapshot(0, np.zeros((4, 2)), np.ones(4, dtype=np.bool_), Edges.none(3))


def test_a_reader_without_a_model_refuses_until_one_is_loaded() -> None:
    reader = Reader.empty("the model is being loaded")
    with pytest.raises(Unavailable, match="being loaded"):
        reader.predict("a")
    with pytest.raises(Unavailable, match="being loaded"):
        reader.knows("a")
    reader.load(IDS, CLASSES, snapshot(2, 3), public=frozenset())
    reader.extend(math.inf)
    assert (reader.version, reader.live_nodes, reader.knows("d")) == (2, 3, False)
    assert reader.predict("a") is not None


def test_loading_again_ends_a_suspension_and_replaces_ids_and_classes() -> None:
    reader = Reader(IDS, CLASSES, snapshot(9))
    reader.suspend("why")
    reader.load(
        ("x", "y"),
        ("only",),
        Snapshot(3, np.ones((2, 1)), np.ones(2, dtype=np.bool_), Edges.none(2)),
        public=frozenset(),
    )
    assert reader.predict("y") == Prediction("y", "only", {"only": 1.0}, 3)
    assert not reader.knows("a")


def test_concurrent_reads_see_the_value_of_the_version_they_name() -> None:
    """Version v predicts v/1000 for every node, so a mixture of versions would show."""
    versions = 400
    reader = Reader(IDS, CLASSES, snapshot(0, fill=0.0))
    wrong: list[Prediction] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            for node in ("a", "d"):
                prediction = reader.predict(node)
                if prediction is not None and prediction.probabilities["red"] != prediction.model_version / 1000:
                    wrong.append(prediction)
            version, predictions, _ = reader.predict_many(["b", "c", "d"])
            wrong.extend(p for p in predictions if p.model_version != version)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for version in range(1, versions):
        dead = (3,) if version > versions // 2 else ()
        reader.publish(snapshot(version, *dead, fill=version / 1000))
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert reader.version == versions - 1


def reachable_strings(reader: Reader) -> set[str]:
    seen: dict[int, object] = {}
    waiting: list[object] = [reader._ids, reader._view]
    while waiting:
        item = waiting.pop()
        if id(item) not in seen and not isinstance(item, type):
            seen[id(item)] = item
            waiting.extend(gc.get_referents(item))
    return {item for item in seen.values() if isinstance(item, str)}
