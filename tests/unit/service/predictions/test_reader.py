"""Predictions from a publication: views, forgotten nodes, the head, and the content of the files."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_store.versions import VersionRef
from projector.forgetting.canaries import Canaries
from service.domain.snapshot import Snapshot
from service.errors import LeaseLost, Unavailable
from service.predictions import mapped
from service.predictions.facts import BLOCK, PublicationDamaged
from service.predictions.heads import Head, Heads
from service.predictions.mapped import View
from service.predictions.reader import Found, Prediction, Reader, Scores
from service.predictions.writer import Publisher
from tests.support.service import publications
from tests.support.service.publications import admitted, have_edges, is_public, knows, predicted

IDS = ("a", "b", "ç d", "d")
#: a - b - ç d, with d isolated.
EDGES = ((0, 1), (1, 2))
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
def reader(publisher: Publisher, tmp_path: Path) -> Reader:
    return admitted(tmp_path)


def write(publisher: Publisher, shown: Snapshot) -> None:
    publisher.write(ref(shown.version), shown, publications.version_facts(shown), of=ref(shown.version - 1))


def load(publisher: Publisher, shown: Snapshot, fencing: int) -> None:
    publications.load(publisher, ref(shown.version), publications.published_model(IDS, shown), shown, fencing)


def show(publisher: Publisher, version: int) -> None:
    assert publisher.show(ref(version), 1)


def test_a_prediction_names_the_most_probable_class_and_its_version(reader: Reader) -> None:
    assert predicted(reader, "b") == Prediction("b", "green", {"red": 0.25, "green": 0.75}, 1)
    head, facts, rows = reader.locate(["ç d"])
    assert (head, facts.served.version, rows, knows(reader, "b")) == (Head(1, 1, 1), 1, [2], True)


@pytest.mark.parametrize("node", ["z", "", "b\0", "ç", "a" * 5000, "\udcff"])
def test_an_id_that_no_node_has_is_unknown(reader: Reader, node: str) -> None:
    assert predicted(reader, node) is None
    assert reader.locate([node])[2] == [None]
    assert not knows(reader, node)
    assert not is_public(reader, node)
    assert have_edges(reader, [(node, "a"), (node, node)]) == [False, False]


def test_a_node_that_a_version_forgot_is_unknown_in_it_and_so_are_its_edges(
    publisher: Publisher, reader: Reader
) -> None:
    write(publisher, snapshot(2, 0))
    assert knows(reader, "a")
    show(publisher, 2)
    assert predicted(reader, "a") is None
    assert reader.facts.served == publications.version_facts(snapshot(2, 0))
    assert have_edges(reader, [("a", "b"), ("b", "ç d")]) == [False, True]
    assert reader.predict_many(["a", "b", "z"])[2] == ["a", "z"]


def test_probabilities_of_a_forgotten_node_are_not_written_even_when_the_snapshot_holds_them(
    publisher: Publisher, reader: Reader
) -> None:
    shown = snapshot(2, 1)
    write(publisher, Snapshot(2, np.full((4, 2), 0.625), shown.live, shown.edges))
    show(publisher, 2)
    written = np.fromfile(publications.folder_of(publisher, ref(2)) / "probabilities").reshape(4, 2)
    assert written.tolist() == [[0.625, 0.625], [0.0, 0.0], [0.625, 0.625], [0.625, 0.625]]


def test_nothing_is_answered_before_the_database_has_admitted_it_and_the_reason_is_said(
    publisher: Publisher, tmp_path: Path
) -> None:
    reader = Reader(tmp_path)
    questions = (lambda: predicted(reader, "a"), lambda: reader.predict_many(()), lambda: reader.facts)
    for ask in questions:
        with pytest.raises(Unavailable, match="the committed version is not known yet"):
            ask()
    assert reader.look_up(["a"]) is None
    assert reader.newest() is None
    reader.admit(1)
    for ask in questions:
        ask()
    reader.suspend("it is gone")
    with pytest.raises(Unavailable, match="it is gone"):
        predicted(reader, "a")
    assert knows(reader, "a")


def test_a_reader_in_a_home_that_does_not_serve_the_model_refuses_everything_by_name(reader: Reader) -> None:
    questions = (lambda: predicted(reader, "a"), lambda: reader.look_up(["a"]), reader.canaries, lambda: reader.facts)
    for ask in questions:
        ask()
    reader.disown()
    for ask in questions:
        with pytest.raises(Unavailable, match="served from another LETHE_HOME"):
            ask()
    reader.admit(0)
    for ask in questions:
        ask()


def test_what_is_older_than_the_committed_version_is_not_answered_from(publisher: Publisher, tmp_path: Path) -> None:
    """As after restoring a backup of LETHE_HOME with its publication."""
    reader = Reader(tmp_path)
    reader.admit(2)
    with pytest.raises(Unavailable, match="older than the committed one"):
        predicted(reader, "a")
    write(publisher, snapshot(2))
    show(publisher, 2)
    assert predicted(reader, "a") is not None


def test_only_what_is_shown_is_answered_from(publisher: Publisher, reader: Reader, tmp_path: Path) -> None:
    write(publisher, snapshot(2, 0))
    assert predicted(reader, "a") is not None
    publisher.withhold(ref(2), 2)
    with pytest.raises(Unavailable, match="has not published the model"):
        predicted(reader, "a")
    load(publisher, snapshot(2, 0), fencing=2)
    assert predicted(reader, "a") is None
    Heads(tmp_path).clear()
    with pytest.raises(Unavailable, match="has not published the model"):
        predicted(reader, "b")


def test_an_entry_of_a_session_that_lost_its_lease_is_never_the_head(
    publisher: Publisher, reader: Reader, tmp_path: Path
) -> None:
    load(publisher, snapshot(2, 0), fencing=5)
    stale = Publisher(tmp_path, tmp_path / "share")
    with pytest.raises(LeaseLost, match=r"4\.1\.1 is not the head"):
        load(stale, snapshot(1), fencing=4)
    assert predicted(reader, "a") is None
    assert predicted(admitted(tmp_path), "a") is None
    # Nor if the higher entry is missing: forgotten data does not return.
    heads = Heads(tmp_path)
    heads._path(Head(5, 2, 2)).unlink()
    with pytest.raises(Unavailable):
        predicted(reader, "b")


def test_entries_of_another_boot_do_not_count_and_go_with_the_next(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("service.predictions.heads.boot_id", lambda: "of today")
    reader, today = admitted(tmp_path), Publisher(tmp_path, tmp_path / "share")
    with pytest.raises(Unavailable, match="has not published the model"):
        predicted(reader, "a")
    shown = snapshot(1)
    publications.load(today, ref(1), publications.published_model(IDS, shown), shown, 2)
    assert predicted(reader, "a") is not None
    [kept] = (tmp_path / "run" / "heads").iterdir()
    assert kept.name.startswith("of today-")


def deletable(reader: Reader) -> tuple[Found | None, Canaries | None]:
    """Return a deletion's queries to a reader."""
    return reader.look_up(IDS, [("a", "b"), ("a", "d")]), reader.canaries()


def test_what_can_be_deleted_is_answered_from_the_version_read_last_where_none_can_be_read(
    publisher: Publisher, reader: Reader
) -> None:
    answers = deletable(reader)
    assert answers[0] == Found(frozenset(IDS), frozenset("b"), (True, False))
    write(publisher, snapshot(2, 3))
    publisher.withhold(ref(2), 2)
    publisher.erase(ref(2), np.array([3]), NO_EDGES)
    publisher.remove_older(ref(2))
    assert deletable(reader) == (Found(frozenset(IDS[:3]), frozenset("b"), (True, False)), answers[1])
    with pytest.raises(Unavailable):
        predicted(reader, "a")


def test_what_can_be_deleted_is_not_answered_from_a_model_that_was_replaced_and_overwritten(
    publisher: Publisher, reader: Reader
) -> None:
    deletable(reader)
    shown = publications.snapshot(2, np.ones((2, 1)))
    imported = publications.published_model(("x", "y"), shown, classes=("only",))
    publisher.write(ref(2), shown, publications.version_facts(shown), of=imported)
    publisher.withhold(ref(2), 2)
    publisher.remove_older(ref(2))
    assert reader.look_up(["a"]) is None
    with pytest.raises(Unavailable):
        reader.live(["a"])
    publications.load(publisher, ref(2), imported, shown, 2)
    assert (knows(reader, "a"), knows(reader, "x")) == (False, True)


def test_a_version_that_is_removed_while_it_is_opened_is_not_served(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(publisher, snapshot(2))
    first, mapped_file = publications.folder_of(publisher, ref(1)), mapped._map

    def removed(path: Path, size: int) -> Any:
        if path.name == "live":
            publisher.remove_older(ref(2))
        return mapped_file(path, size)

    monkeypatch.setattr(mapped, "_map", removed)
    with pytest.raises(FileNotFoundError):
        mapped.open_view(Head(1, 1, 1), first)


def test_an_answer_whose_view_was_replaced_meanwhile_is_computed_from_the_new_one(
    publisher: Publisher, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(publisher, snapshot(2, 0))
    find, asked = View.find, []

    def replaced(view: Any, node: str) -> int | None:
        asked.append(node)
        if len(asked) == 1:
            show(publisher, 2)
            # The first is computed from data that has been overwritten.
            publisher.remove_older(ref(2))
        return find(view, node)

    monkeypatch.setattr(View, "find", replaced)
    assert predicted(reader, "b") == Prediction("b", "green", {"red": 0.25, "green": 0.75}, 2)
    assert len(asked) == 2


def test_damage_is_met_by_the_answer_that_reads_from_it_and_ends_all_of_that_version(tmp_path: Path) -> None:
    classes, nodes = ("red", "green", "blue"), 25_000
    ids, shown = [f"n{row}" for row in range(nodes)], publications.snapshot(1, np.full((nodes, 3), 0.25))
    publisher = Publisher(tmp_path, tmp_path)
    publications.load(publisher, ref(1), publications.published_model(ids, shown, classes=classes), shown)
    # The first row that partly lies in the second block.
    row = BLOCK // 24
    assert row * 24 < BLOCK < (row + 1) * 24
    path = publications.folder_of(publisher, ref(1)) / "probabilities"
    with path.open("r+b") as file:
        file.seek(BLOCK)
        [byte] = file.read(1)
        file.seek(BLOCK)
        file.write(bytes([byte ^ 1]))
    reader = admitted(tmp_path)
    elsewhere = [ids[0], ids[row - 1], ids[-1]]
    assert len(reader.predict_many(elsewhere)[1]) == 3
    # The readiness check needs none.
    for nodes_asked in ([ids[row]], [], elsewhere):
        with pytest.raises(PublicationDamaged, match=f"{path} is damaged"):
            reader.predict_many(nodes_asked)
    assert knows(reader, ids[row])
    write(publisher, publications.snapshot(2, np.full((nodes, 3), 0.25)))
    show(publisher, 2)
    assert predicted(reader, ids[row]) is not None


def test_a_model_that_is_imported_replaces_ids_and_classes(publisher: Publisher, reader: Reader) -> None:
    shown = publications.snapshot(2, np.ones((2, 1)))
    imported = publications.published_model(("x", "y"), shown, classes=("only",))
    publisher.write(ref(2), shown, publications.version_facts(shown), of=imported)
    show(publisher, 2)
    assert predicted(reader, "y") == Prediction("y", "only", {"only": 1.0}, 2)
    assert not knows(reader, "a")
    assert reader.canaries() is None


def test_a_swap_maps_no_model_again_and_keeps_nothing_of_the_version_before(
    publisher: Publisher, reader: Reader
) -> None:
    before = reader._current()
    write(publisher, snapshot(2, 0))
    show(publisher, 2)
    assert reader._current().model is before.model
    publisher.remove_older(ref(2))
    assert len(list(publications.layout_of(publisher).versions.iterdir())) == 1


def test_concurrent_reads_see_the_value_of_the_version_they_name(publisher: Publisher, reader: Reader) -> None:
    """Version v predicts v/1000 for every node, and older versions are overwritten immediately."""
    versions = 40
    write(publisher, snapshot(2, fill=0.002))
    show(publisher, 2)
    wrong: list[Prediction | Scores] = []
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
        show(publisher, version)
        publisher.erase(ref(version), np.array(dead, dtype=np.int64), NO_EDGES)
        publisher.remove_older(ref(version))
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert reader.facts.served.version == versions - 1


def test_files_that_hold_anything_are_no_fault_once_another_version_is_shown(
    publisher: Publisher, reader: Reader
) -> None:
    asked: list[int] = []

    def broken(view: View) -> int:
        asked.append(view.head.version)
        if view.head.version == 1:
            if len(asked) > 1:
                write(publisher, snapshot(2))
                show(publisher, 2)
            raise IndexError("a table of zeros")
        return view.head.version

    with pytest.raises(IndexError):
        reader.answer(broken)
    assert reader.answer(broken) == 2
    assert asked == [1, 1, 2]


def test_a_regression_answers_its_scores_and_names_no_class(tmp_path: Path) -> None:
    shown = publications.snapshot(1, np.tile([-1.23456, 7.0], (len(IDS), 1)), EDGES, (3,))
    model = publications.published_model(IDS, shown)
    model = replace(model, facts=replace(model.facts, regression={"r_squared_test": 0.5}))
    publications.load(Publisher(tmp_path, tmp_path / "share"), ref(1), model, shown)
    version, found, missing = admitted(tmp_path).predict_many(["b", "d"], 2)
    assert (version, found, missing) == (1, [Scores("b", {"red": -1.23, "green": 7.0}, 1)], ["d"])
