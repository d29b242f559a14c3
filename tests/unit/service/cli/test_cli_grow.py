"""add and correct: their requests to the service; and lists that are too long for one request."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from service.cli import requesting
from tests.support.clients.command_line import CommandLine
from tests.support.clients.lethe_stub import LetheStub

RECEIVED = "2026-03-02T09:15:04.120000Z"


def accepted(request_id: str = "r1", kind: str = "addition", **fields: Any) -> tuple[int, dict[str, Any]]:
    document = {"id": request_id, "status": "queued", "kind": kind, "count": 2, "received_at": RECEIVED}
    return 202, document | {"salts": {"nodes": {"anna": "5f1d"}, "reference": None}, **fields}


def too_large(**extra: int) -> tuple[int, dict[str, Any]]:
    return 413, {"type": "urn:lethe:problem:too-large", "detail": "Too large.", "remedy": "Split it.", **extra}


def bodies(stub: LetheStub) -> list[Any]:
    return [body for _, _, body in stub.asked]


def test_a_node_is_added_with_its_neighbours(lethe: CommandLine, stub: LetheStub) -> None:
    stub.answers["POST", "/additions"] = accepted()
    row = '{"3": 1, "17": 0.5}'
    ran = lethe("add", "anna", "--features", row, "--label", "2", "--edge", "12", "--edge", "57", "--rejoin")
    node = {"id": "anna", "features": {"3": 1.0, "17": 0.5}, "label": "2", "rejoin": True}
    assert bodies(stub) == [{"nodes": [node], "edges": [["12", "anna"], ["57", "anna"]]}]
    assert (ran.status, ran.stdout) == (0, "r1 queued: 2 new nodes and edges\n")
    assert "anna  5f1d" in ran.stderr


def test_a_file_names_nodes_and_edges_a_line_each(lethe: CommandLine, stub: LetheStub, tmp_path: Path) -> None:
    stub.answers["POST", "/additions"] = accepted()
    lines = [
        {"id": "anna", "features": [1, 0], "edges": ["bert", ["12", 0.5]]},
        {"edges": [["12", "57", 2.5], ["bert", "anna"], ["7", "8", 1]]},
        {"id": "bert", "features": [0, 1], "label": [0.5]},
    ]
    file = tmp_path / "new.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    assert lethe("add", "--file", file, "--reference", "R").status == 0
    nodes = [{"id": "anna", "features": [1.0, 0.0]}, {"id": "bert", "features": [0.0, 1.0], "label": [0.5]}]
    # The edge between the two once, with the later one.
    assert bodies(stub) == [
        {
            "nodes": nodes,
            "edges": [["12", "anna", 0.5], ["anna", "bert"], ["12", "57", 2.5], ["7", "8"]],
            "reference": "R",
        }
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": "anna"}', "has no features"),
        ('{"id": 7, "features": {}}', "Line 1 does not fit"),
        ('{"id": "anna", "features": {}, "colour": 1}', "colour"),
        ('{"edges": ["12"]}', "has one end"),
        ('{"edges": [["12", 3, 4]]}', "is not an edge"),
        ('{"edges": [["12", "13", "14"]]}', "is not an edge"),
        ('{"edges": [["1", "2", 3], ["2", "1", 4]]}', "two weights"),
        ('{"id": "anna", "features": {}}\n{"id": "anna", "features": {}}', "given twice"),
        ("anna", "Line 1 does not fit"),
        ('{"id": "7", "features": {"3": 1, "3": 2}}', "member `3`"),
        ('{"id": "7", "features": {"3": 1e999}}', "Line 1 does not fit"),
        ('{"id": "\\ud800", "features": {}}', "Line 1 does not fit"),
    ],
)
def test_a_line_that_does_not_fit_is_named(
    lethe: CommandLine, stub: LetheStub, tmp_path: Path, line: str, message: str
) -> None:
    file = tmp_path / "new.jsonl"
    file.write_text(line)
    ran = lethe("add", "--file", file)
    assert (ran.status, stub.asked) == (2, [])
    assert message in " ".join(ran.stderr.split())


def test_a_correction_sends_what_is_replaced_and_nothing_else(
    lethe: CommandLine, stub: LetheStub, tmp_path: Path
) -> None:
    stub.answers["POST", "/corrections"] = accepted(kind="correction", count=1)
    assert lethe("correct", "12", "--label", "3").stdout == "r1 queued: 1 corrected node\n"
    file = tmp_path / "corrected.jsonl"
    file.write_text('{"id": "12", "features": {"3": 1}}\n{"id": "57", "label": [1.5]}\n')
    assert lethe("correct", "--file", file).status == 0
    assert bodies(stub) == [
        {"nodes": [{"id": "12", "label": "3"}]},
        {"nodes": [{"id": "12", "features": {"3": 1.0}}, {"id": "57", "label": [1.5]}]},
    ]


def test_a_long_list_is_sent_in_several_requests_with_a_file_of_salts_each(
    lethe: CommandLine, stub: LetheStub, tmp_path: Path
) -> None:
    stub.answers["POST", "/deletions"] = [
        too_large(max_nodes=2),
        *(accepted(f"r{number}", "node", salts={"nodes": {f"{number}": "aa"}}) for number in (1, 2, 3)),
    ]
    ids, salts = tmp_path / "ids.txt", tmp_path / "salts.json"
    ids.write_text("1\n2\n3\n4\n5\n")
    ran = lethe("delete", "--file", ids, "--salts", salts)
    assert [body["nodes"] for body in bodies(stub)] == [["1", "2", "3", "4", "5"], ["1", "2"], ["3", "4"], ["5"]]
    assert [line.split()[0] for line in ran.stdout.splitlines()] == ["r1", "r2", "r3"]
    files = sorted(tmp_path.glob("salts*"))
    assert [file.name for file in files] == ["salts-2.json", "salts-3.json", "salts.json"]
    assert [json.loads(file.read_text())["id"] for file in files] == ["r2", "r3", "r1"]


def test_a_list_that_is_too_large_in_bytes_is_halved_until_it_fits(lethe: CommandLine, stub: LetheStub) -> None:
    stub.answers["POST", "/deletions"] = [too_large(), too_large(), accepted(kind="node")]
    assert lethe("delete", "1", "2", "3", "4", "5").status == 0
    assert [len(body["nodes"]) for body in bodies(stub)] == [5, 3, 2, 2, 1]
    stub.answers["POST", "/deletions"] = too_large()
    assert lethe("delete", "1", "2").status == 4


def test_large_parts_are_split_before_they_are_sent(
    lethe: CommandLine, stub: LetheStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requesting, "_PART_BYTES", 20)
    stub.answers["POST", "/deletions"] = accepted(kind="node")
    assert lethe("delete", "a" * 10, "b" * 10, "c" * 30).status == 0
    assert [len(body["nodes"]) for body in bodies(stub)] == [1, 1, 1]


def test_what_was_accepted_before_a_refusal_is_reported(lethe: CommandLine, stub: LetheStub) -> None:
    refusal = (
        404,
        {"type": "urn:lethe:problem:unknown-nodes", "detail": "Unknown.", "remedy": "Check.", "unknown": ["3"]},
    )
    stub.answers["POST", "/deletions"] = [too_large(max_nodes=2), accepted(kind="node"), refusal]
    ran = lethe("delete", "1", "2", "3")
    assert ran.status == 3
    assert ran.stdout == "r1 queued: 2 nodes\n"
    assert "accepted 1 request for the first 2 of 3 entries" in " ".join(ran.stderr.split())


def test_a_second_file_of_salts_that_exists_stops_after_the_first_request(
    lethe: CommandLine, stub: LetheStub, tmp_path: Path
) -> None:
    stub.answers["POST", "/deletions"] = [too_large(max_nodes=2), accepted(kind="node"), accepted(kind="node")]
    (tmp_path / "salts-2.json").write_text("kept")
    ran = lethe("delete", "1", "2", "3", "--salts", tmp_path / "salts.json")
    assert ran.status != 0
    assert len(stub.asked) == 2
    assert "accepted 1 request for the first 2 of 3 entries" in " ".join(ran.stderr.split())
    assert (tmp_path / "salts-2.json").read_text() == "kept"


def test_a_full_queue_is_waited_for_as_long_as_was_said(lethe: CommandLine, stub: LetheStub) -> None:
    full = 429, {"type": "urn:lethe:problem:queue-full", "detail": "Full.", "remedy": "Wait.", "retry_after": 0}
    stub.answers["POST", "/deletions"] = [full] * 4 + [accepted(kind="node")]
    assert lethe("delete", "1").status == 0
    stub.answers["POST", "/deletions"] = full
    assert lethe("delete", "1", "--timeout", "0").status == 4


def test_tables_of_nodes_and_edges_are_added_with_columns_by_name(
    lethe: CommandLine, stub: LetheStub, tmp_path: Path
) -> None:
    stub.answers["POST", "/additions"] = accepted()
    nodes = {
        "user_id": [7, 8],
        "age": [31.5, None],
        "country": pa.array(["DE", "FR"]).dictionary_encode(),
        "premium": [True, False],
        "embedding": pa.array([[0.5, 1.0], [2.0, 3.0]], pa.list_(pa.float32(), 2)),
        "segment": ["loyal", None],
    }
    parquet.write_table(pa.table(nodes), tmp_path / "new.parquet")
    (tmp_path / "follows.csv").write_text("source,target\n7,12\n8,7\n")
    file = ["--file", tmp_path / "new.parquet", "--id", "user_id", "--label", "segment"]
    refused = lethe("add", *file)
    assert (refused.status, bodies(stub)) == (1, [])
    assert "values are missing: 1 in 'age'" in refused.stderr
    assert lethe("add", *file, "--missing", "zero", "--edges", tmp_path / "follows.csv").status == 0
    assert bodies(stub) == [
        {
            "nodes": [
                {
                    "id": "7",
                    "features": {"age": 31.5, "country": "DE", "premium": 1.0, "embedding": [0.5, 1.0]},
                    "label": "loyal",
                },
                {"id": "8", "features": {"country": "FR", "premium": 0.0, "embedding": [2.0, 3.0]}},
            ],
            "edges": [["12", "7"], ["7", "8"]],
        }
    ]


def test_a_table_corrects_the_columns_that_are_named_and_a_table_names_who_leaves(
    lethe: CommandLine, stub: LetheStub, tmp_path: Path
) -> None:
    stub.answers["POST", "/corrections"] = accepted(kind="correction")
    stub.answers["POST", "/deletions"] = accepted(kind="node")
    file = tmp_path / "users.csv"
    file.write_text("id,age,label\n007,30,3\n8,31,\n")
    assert lethe("correct", "--file", file, "--features", "age").status == 0
    assert lethe("delete", "--file", file).status == 0
    assert lethe("delete", "--kind", "edge", "--file", file, "--source", "id", "--target", "age").status == 0
    assert bodies(stub) == [
        {
            "nodes": [
                {"id": "007", "features": {"age": 30.0}, "label": "3"},
                {"id": "8", "features": {"age": 31.0}},
            ]
        },
        {"kind": "node", "nodes": ["007", "8"]},
        {"kind": "edge", "edges": [["007", "30"], ["8", "31"]]},
    ]


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        ("id,age\n,1\n", [], "ids are missing"),
        ("user,age\n7,1\n", [], "no column 'id'"),
        ("id,age\n7,1\n", ["--features", "height"], "no column 'height'"),
        ("id,account_id\n7,1\n", [], "look like ids"),
        ("id,age\n7,1\n7,2\n", [], "given twice"),
        ("id,age\n7,1\n", ["anna"], "either a node or a table"),
    ],
)
def test_a_table_that_cannot_be_sent_is_refused(
    lethe: CommandLine, stub: LetheStub, tmp_path: Path, table: str, options: list[str], message: str
) -> None:
    (tmp_path / "new.csv").write_text(table)
    ran = lethe("add", *options, "--file", tmp_path / "new.csv")
    assert ran.status != 0
    assert message in " ".join(ran.stderr.replace("│", " ").split())
    assert bodies(stub) == []
