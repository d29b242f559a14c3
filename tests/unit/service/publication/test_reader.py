"""Predictions from a publication: views, forgotten nodes, the lease, and what is in the files."""

import math
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_store.versions import VersionRef
from projector.forgetting.canaries import Canaries
from service.boottime import boottime
from service.domain.snapshot import Snapshot
from service.errors import Unavailable
from service.publication import mapped
from service.publication.checksums import BLOCK, PublicationDamaged
from service.publication.layout import Layout
from service.publication.reader import Prediction, Reader
from service.publication.writer import Publisher
from tests.support.service import publications
from tests.support.service.publications import predicted

IDS = ("a", "b", "ç d", "d")
#: a - b - ç d, and d alone.
EDGES = ((0, 1), (1, 2))
NO_ROWS = np.empty(0, dtype=np.int64)
NO_EDGES = np.empty((0, 2), dtype=np.int64)


def snapshot(version: int, *dead: int, fill: float = 0.25) -> Snapshot:
    return publications.snapshot(version, np.tile([fill, 1.0 - fill], (len(IDS), 1)), EDGES, dead)


def ref(version: int) -> VersionRef:
    return VersionRef(version, 1)


@pytest.fixture
def publisher(tmp_path: Path) -> Publisher:
    shown = snapshot(1)
    publisher = Publisher(tmp_path, tmp_path / "share")
    canaries = Canaries(cohorts=1, nodes=1, first_column=2, tag="0123abcd")
    publications.load(
        publisher, ref(1), publications.published_model(IDS, shown, public=("b",), canaries=canaries), shown
    )
    return publisher


@pytest.fixture
def reader(publisher: Publisher) -> Reader:
    reader = Reader()
    publications.serve(reader, publisher, ref(1))
    return reader


def write(publisher: Publisher, shown: Snapshot) -> None:
    publisher.write(ref(shown.version), shown, publications.version_facts(shown), of=ref(shown.version - 1))


def test_a_prediction_names_the_most_probable_class_and_its_version(reader: Reader) -> None:
    assert predicted(reader, "b") == Prediction("b", "green", {"red": 0.25, "green": 0.75}, 1)
    assert (reader.row("ç d"), reader.knows("b")) == (2, True)


def test_equally_probable_classes_give_the_first(tmp_path: Path) -> None:
    prediction = predicted(publications.reader_of(tmp_path, IDS, snapshot(1, fill=0.5)), "a")
    assert prediction is not None
    assert prediction.label == "red"


@pytest.mark.parametrize("node", ["z", "", "b\0", "ç", "a" * 5000, "\udcff"])
def test_an_id_that_no_node_has_is_unknown(reader: Reader, node: str) -> None:
    assert predicted(reader, node) is None
    assert reader.row(node) is None
    assert not reader.knows(node)
    assert not reader.is_public(node)
    assert reader.have_edges([(node, "a"), (node, node)]) == [False, False]


def test_what_the_manifests_say_is_answered(reader: Reader) -> None:
    assert reader.facts.model == publications.model_facts(4)
    assert reader.facts.served == publications.version_facts(snapshot(1))
    assert reader.canaries == Canaries(cohorts=1, nodes=1, first_column=2, tag="0123abcd")
    assert [reader.is_public(node) for node in IDS] == [False, True, False, False]


def test_edges_are_looked_up_by_ids_in_either_order(reader: Reader) -> None:
    pairs = [("a", "b"), ("b", "a"), ("a", "ç d"), ("d", "d"), ("a", "z"), ("z", "z"), ("ç d", "b")]
    assert reader.have_edges(pairs) == [True, True, False, False, False, False, True]
    assert reader.have_edges([]) == []


def test_a_node_that_a_version_forgot_is_unknown_in_it_and_so_are_its_edges(
    publisher: Publisher, reader: Reader
) -> None:
    write(publisher, snapshot(2, 0))
    assert reader.knows("a")
    publications.serve(reader, publisher, ref(2))
    assert predicted(reader, "a") is None
    assert reader.facts.served == publications.version_facts(snapshot(2, 0))
    assert reader.have_edges([("a", "b"), ("b", "ç d")]) == [False, True]
    assert reader.predict_many(["a", "b", "z"])[2] == ["a", "z"]


def test_edges_that_are_erased_are_gone(publisher: Publisher, reader: Reader) -> None:
    publisher.erase(ref(1), NO_ROWS, np.array([[2, 1]]), 1)
    assert reader.have_edges([("b", "ç d"), ("ç d", "b"), ("a", "b")]) == [False, False, True]


def test_probabilities_of_a_forgotten_node_are_not_written_even_when_the_snapshot_holds_them(
    publisher: Publisher, reader: Reader
) -> None:
    shown = snapshot(2, 1)
    write(publisher, Snapshot(2, np.full((4, 2), 0.625), shown.live, shown.edges))
    publications.serve(reader, publisher, ref(2))
    assert reader.view is not None
    written = np.fromfile(reader.view.path / "probabilities").reshape(4, 2)
    assert written.tolist() == [[0.625, 0.625], [0.0, 0.0], [0.625, 0.625], [0.625, 0.625]]


def test_nodes_already_gone_at_a_start_are_unknown(tmp_path: Path) -> None:
    reader = publications.reader_of(tmp_path, ("a", "", "", "d"), snapshot(3, 1, 2))
    assert not reader.knows("")
    assert predicted(reader, "d") is not None
    assert reader.facts.served.live_nodes == 2


def test_many_predictions_are_of_one_version_in_the_order_asked(reader: Reader) -> None:
    version, predictions, missing = reader.predict_many(["ç d", "nobody", "a", "ç d"])
    assert version == 1
    assert [prediction.node for prediction in predictions] == ["ç d", "a", "ç d"]
    assert missing == ["nobody"]


def test_nothing_is_served_without_a_view_or_a_lease_and_the_reason_is_said(
    publisher: Publisher, reader: Reader
) -> None:
    questions = (lambda: predicted(reader, "a"), lambda: reader.predict_many(()), lambda: reader.facts)
    for ask in questions:
        ask()
    reader.extend(boottime())
    for ask in questions:
        with pytest.raises(Unavailable, match="not learned in time"):
            ask()
    reader.explain("the database is away")
    with pytest.raises(Unavailable, match="the database is away"):
        predicted(reader, "a")
    reader.extend(math.inf)
    assert predicted(reader, "a") is not None
    with pytest.raises(Unavailable, match="has not been read yet"):
        predicted(Reader(), "a")


def deletable(reader: Reader) -> tuple[list[bool], list[bool], list[bool], Canaries | None]:
    """What a deletion asks of a reader."""
    known, public = [[question(node) for node in IDS] for question in (reader.knows, reader.is_public)]
    return known, public, reader.have_edges([("a", "b"), ("a", "d")]), reader.canaries


def test_what_can_be_deleted_is_told_by_the_version_read_last_whatever_the_lease_says(
    publisher: Publisher, reader: Reader
) -> None:
    told = deletable(reader)
    reader.extend(boottime())
    # The unlearner has waited long enough for this reader, which is still at the version before.
    write(publisher, snapshot(2, 3))
    publisher.erase(ref(2), np.array([3]), NO_EDGES, 1)
    publisher.remove_older(ref(2), 1)
    live, *others = deletable(reader)
    assert (live, others) == ([True, True, True, False], list(told[1:]))
    with pytest.raises(Unavailable):
        predicted(reader, "a")
    with pytest.raises(Unavailable, match="has not been read yet"):
        Reader().knows("a")


def test_what_can_be_deleted_is_not_told_by_a_model_that_was_replaced_and_overwritten(
    publisher: Publisher, reader: Reader
) -> None:
    reader.extend(boottime())
    shown = publications.snapshot(2, np.ones((2, 1)))
    imported = publications.published_model(("x", "y"), shown, classes=("only",))
    publisher.write(ref(2), shown, publications.version_facts(shown), of=imported)
    publisher.remove_older(ref(2), 1)
    for ask in (reader.knows, reader.is_public):
        with pytest.raises(Unavailable):
            ask("a")
    publications.serve(reader, publisher, ref(2), until=boottime())
    assert (reader.knows("a"), reader.knows("x")) == (False, True)


def test_a_version_that_is_removed_while_it_is_opened_is_not_served(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(publisher, snapshot(2))
    mapped_file = mapped._map

    def removed(path: Path, size: int) -> Any:
        if path.name == "live":
            publisher.remove_older(ref(2), 1)
        return mapped_file(path, size)

    monkeypatch.setattr(mapped, "_map", removed)
    with pytest.raises(FileNotFoundError):
        mapped.open_view(publisher.layout, ref(1).folder)


def test_an_answer_that_was_computed_while_the_lease_ran_out_is_refused(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a process that is stopped in the middle of it, while the files it reads are overwritten."""
    reader.extend(boottime() + 60)
    later = boottime() + 120
    assert reader.view is not None
    find = type(reader.view).find

    def stopped(view: Any, node: str) -> int | None:
        monkeypatch.setattr("service.publication.reader.boottime", lambda: later)
        return find(view, node)

    monkeypatch.setattr(type(reader.view), "find", stopped)
    with pytest.raises(Unavailable):
        predicted(reader, "a")


def test_an_answer_whose_view_was_replaced_meanwhile_is_computed_from_the_new_one(
    publisher: Publisher, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(publisher, snapshot(2, 0))
    assert reader.view is not None
    find, asked = type(reader.view).find, []

    def replaced(view: Any, node: str) -> int | None:
        asked.append(node)
        if len(asked) == 1:
            publications.serve(reader, publisher, ref(2))
            # What the first is computed from is not what was written any more.
            publisher.remove_older(ref(2), 1)
        return find(view, node)

    monkeypatch.setattr(type(reader.view), "find", replaced)
    assert predicted(reader, "b") == Prediction("b", "green", {"red": 0.25, "green": 0.75}, 2)
    assert len(asked) == 2


def test_damage_is_met_by_the_answer_that_reads_from_it_and_ends_all_of_that_version(tmp_path: Path) -> None:
    classes, nodes = ("red", "green", "blue"), 25_000
    ids, shown = [f"n{row}" for row in range(nodes)], publications.snapshot(1, np.full((nodes, 3), 0.25))
    publications.reader_of(tmp_path, ids, shown, classes=classes)
    publisher = Publisher(tmp_path, tmp_path)
    # The first of which a part is in the second block.
    row = BLOCK // 24
    assert row * 24 < BLOCK < (row + 1) * 24
    path = publisher.layout.version("1-1") / "probabilities"
    with path.open("r+b") as file:
        file.seek(BLOCK)
        [byte] = file.read(1)
        file.seek(BLOCK)
        file.write(bytes([byte ^ 1]))
    reader = Reader()
    publications.serve(reader, publisher, ref(1))
    elsewhere = [ids[0], ids[row - 1], ids[-1]]
    assert len(reader.predict_many(elsewhere)[1]) == 3
    # The readiness check asks for none.
    for nodes_asked in ([ids[row]], [], elsewhere):
        with pytest.raises(PublicationDamaged, match=f"{path} is damaged"):
            reader.predict_many(nodes_asked)
    assert reader.knows(ids[row])
    write(publisher, publications.snapshot(2, np.full((nodes, 3), 0.25)))
    publications.serve(reader, publisher, ref(2))
    assert predicted(reader, ids[row]) is not None


def test_a_block_is_checked_before_its_first_answer_and_not_for_each(publisher: Publisher, reader: Reader) -> None:
    assert predicted(reader, "a") is not None
    with (publisher.layout.version("1-1") / "probabilities").open("r+b") as file:
        file.write(b"damaged")
    assert predicted(reader, "b") is not None


def test_a_model_that_is_imported_replaces_ids_and_classes(publisher: Publisher, reader: Reader) -> None:
    shown = publications.snapshot(2, np.ones((2, 1)))
    imported = publications.published_model(("x", "y"), shown, classes=("only",))
    publisher.write(ref(2), shown, publications.version_facts(shown), of=imported)
    publications.serve(reader, publisher, ref(2))
    assert predicted(reader, "y") == Prediction("y", "only", {"only": 1.0}, 2)
    assert not reader.knows("a")
    assert reader.canaries is None


def test_a_swap_maps_no_model_again_and_keeps_nothing_of_the_version_before(
    publisher: Publisher, reader: Reader
) -> None:
    before = reader.view
    write(publisher, snapshot(2, 0))
    publications.serve(reader, publisher, ref(2))
    assert before is not None
    assert reader.view is not None
    assert reader.view.model is before.model
    layout = Layout.find(publisher.layout.path.parents[1])
    assert layout is not None
    assert len(list(layout.models.iterdir())) == 1


def test_concurrent_reads_see_the_value_of_the_version_they_name(publisher: Publisher, reader: Reader) -> None:
    """Version v predicts v/1000 for every node, and older versions are overwritten at once."""
    versions = 40
    write(publisher, snapshot(2, fill=0.002))
    publications.serve(reader, publisher, ref(2))
    wrong: list[Prediction] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            for node in ("a", "b"):
                prediction = predicted(reader, node)
                if prediction is None or prediction.probabilities["red"] != prediction.model_version / 1000:
                    wrong.append(prediction or Prediction(node, "", {}, 0))
            version, predictions, _ = reader.predict_many(["b", "ç d", "d"])
            wrong.extend(p for p in predictions if p.model_version != version)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for version in range(3, versions):
        dead = (3,) if version > versions // 2 else ()
        write(publisher, snapshot(version, *dead, fill=version / 1000))
        publications.serve(reader, publisher, ref(version))
        publisher.erase(ref(version), np.array(dead, dtype=np.int64), NO_EDGES, 1)
        publisher.remove_older(ref(version), 1)
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert reader.facts.served.version == versions - 1


def test_files_that_hold_anything_are_no_fault_once_the_lease_has_run_out(tmp_path: Path) -> None:
    reader = publications.reader_of(tmp_path, IDS, snapshot(1))

    def broken(view: object) -> None:
        if not lapses:
            raise IndexError("a table of zeros")
        reader.extend(-math.inf)
        raise IndexError("a table of zeros")

    lapses: list[bool] = []
    with pytest.raises(IndexError):
        reader._answer(reader._is_leased, broken)
    lapses.append(True)
    with pytest.raises(Unavailable):
        reader._answer(reader._is_leased, broken)
