"""delete, predict and audit: their requests to the service and their output."""

import json
import os
import re
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from service.domain.states import noise_in_words
from service.processes.listening import ServerFacts
from tests.support.clients.command_line import CommandLine
from tests.support.clients.lethe_stub import LetheStub

RECEIVED = "2026-03-02T09:15:04.120000Z"
AUDIT = {
    "batch": {"id": "b1", "requests": 5, "nodes": 9},
    "model_version_before": 6,
    "model_version_after": 7,
    "weights_sha256_before": "aa",
    "weights_sha256_after": "bb",
    "rank_before": 1431,
    "rank_after": 1430,
    "directions_removed": 1,
    "injected_norm_before": 0.2345678,
    "injected_norm_after": 0.0,
    "span_residual": 3e-15,
    "weight_change": 0.011,
    "durations_ms": {"new": 1.0, "verify": 3.0, "write": 2.0, "project": 1.9},
    "device": "cpu",
}


def accepted(**fields: Any) -> tuple[int, dict[str, Any]]:
    document = {"id": "r1", "status": "queued", "kind": "node", "count": 2, "received_at": RECEIVED}
    salts = {"nodes": {"12": "5f1d", "57": "aa01"}, "reference": "beef"}
    return 202, {**document, "salts": salts, "already_deleted": {}, **fields}


def deletion(status: str, **fields: Any) -> tuple[int, dict[str, Any]]:
    return 200, {"id": "r1", "status": status, "kind": "node", "count": 2, "received_at": RECEIVED, **fields}


def test_deleting_prints_the_request_and_the_salts_that_come_once(lethe: CommandLine, stub: LetheStub) -> None:
    stub.answers["POST", "/deletions"] = accepted(already_deleted={"9": "r0"})
    ran = lethe("delete", "12", "57", "12", "--reference", "DSR-17")
    assert stub.asked == [("POST", "/deletions", {"kind": "node", "nodes": ["12", "57"], "reference": "DSR-17"})]
    assert stub.keys == ["Bearer the key"]
    assert (ran.status, ran.stdout) == (0, "r1 queued: 2 nodes\n")
    assert "57  aa01" in ran.stderr
    assert "the reference  beef" in ran.stderr
    assert "9: already deleted by request r0" in ran.stderr


def test_ids_come_from_a_file_and_salts_go_to_a_private_one(
    lethe: CommandLine, stub: LetheStub, tmp_path: Path
) -> None:
    stub.answers["POST", "/deletions"] = accepted()
    ids, salts = tmp_path / "ids.txt", tmp_path / "salts.json"
    ids.write_text("12\n\n 57 \n12\n")
    assert lethe("delete", "--file", ids, "--salts", salts).status == 0
    assert stub.asked[0][2]["nodes"] == ["12", "57"]
    # In the format of `audit verify --salts`.
    assert json.loads(salts.read_text())["salts"]["nodes"] == {"12": "5f1d", "57": "aa01"}
    assert stat.S_IMODE(salts.stat().st_mode) == 0o600
    again = lethe("delete", "--file", ids, "--salts", salts)
    assert again.status == 4
    assert "salts.json: File exists" in again.stderr
    assert len(stub.asked) == 1, "what has no place for its salts is not asked for"


def test_a_file_for_salts_that_were_not_given_is_not_left_behind(
    lethe: CommandLine, stub: LetheStub, tmp_path: Path
) -> None:
    stub.answers["POST", "/deletions"] = accepted(status="completed", salts=None)
    assert lethe("delete", "12", "--salts", tmp_path / "salts.json").status == 0
    del stub.answers["POST", "/deletions"]
    assert lethe("delete", "12", "--salts", tmp_path / "salts.json").status == 3
    assert not list(tmp_path.glob("salts*"))


def test_edges_are_pairs_of_ids_as_arguments_and_in_files(lethe: CommandLine, stub: LetheStub, tmp_path: Path) -> None:
    stub.answers["POST", "/deletions"] = accepted(kind="edge", count=1, already_deleted={"4|8": "r0"})
    ran = lethe("delete", "--kind", "edge", "1,2", "4, 8", "--reference", "DSR-18")
    assert ran.stdout == "r1 queued: 1 edge\n"
    assert "4|8: already deleted by request r0" in ran.stderr
    edges = tmp_path / "edges.txt"
    edges.write_text("1,2\n1 2\na b\tc,d\nuser 1,user 2\n")
    assert lethe("delete", "--kind", "edge", "--file", edges, "1,2").status == 0
    assert stub.asked[0][2] == {"kind": "edge", "edges": [["1", "2"], ["4", "8"]], "reference": "DSR-18"}
    assert stub.asked[1][2]["edges"] == [["1", "2"], ["a b", "c,d"], ["user 1", "user 2"]]


@pytest.mark.parametrize("text", ["12", "1,2,3", "1 2 3", "1,", ",", "1\t"])
def test_what_is_no_pair_of_ids_is_no_edge(lethe: CommandLine, stub: LetheStub, text: str) -> None:
    ran = lethe("delete", "--kind", "edge", "3,4", text)
    assert (ran.status, stub.asked) == (2, [])
    assert "two ids" in ran.stderr


def test_a_refusal_shows_what_was_wrong_and_what_to_do(lethe: CommandLine, stub: LetheStub) -> None:
    problem = {"type": "urn:x", "title": "Unknown nodes", "status": 404, "detail": "No node 99.", "remedy": "Check it."}
    stub.answers["POST", "/deletions"] = 404, problem
    ran = lethe("delete", "99")
    assert (ran.status, ran.stdout) == (3, "")
    assert "No node 99." in ran.stderr
    assert ran.stderr.rstrip().endswith("Check it.")


def test_a_refusal_prints_what_it_lists(lethe: CommandLine, stub: LetheStub) -> None:
    problem = {"type": "urn:x", "title": "T", "status": 404, "detail": "Unknown.", "remedy": "See `unknown`."}
    stub.answers["POST", "/deletions"] = 404, {**problem, "unknown": ["99", "98"], "max_nodes": 3}
    ran = lethe("delete", "99", "98")
    assert "unknown: 99, 98" in ran.stderr
    assert "max_nodes" not in ran.stderr
    stub.answers["POST", "/deletions"] = 404, {**problem, "unknown": [str(node) for node in range(50)]}
    assert "19, and 30 more" in lethe("delete", "99").stderr
    faults = [{"loc": ["body", "node", "nodes"], "msg": "List should have at least 1 item"}]
    stub.answers["POST", "/deletions"] = 422, {**problem, "errors": faults, "duplicates": [["1", "2"]]}
    ran = lethe("delete", "99")
    assert "errors: body.node.nodes: List should have at least 1 item" in ran.stderr
    assert "duplicates: 1,2" in ran.stderr


def test_waiting_for_a_request_that_fails_exits_with_1(lethe: CommandLine, stub: LetheStub) -> None:
    stub.answers["POST", "/deletions"] = accepted()
    stub.answers["GET", "/deletions/r1"] = deletion("failed", failure="Row 3 is damaged.")
    ran = lethe("delete", "12", "--wait")
    assert ran.status == 1
    assert "Row 3 is damaged." in ran.stdout
    assert "failed" in ran.stderr


def test_several_requests_are_all_waited_for_and_each_is_reported(lethe: CommandLine, stub: LetheStub) -> None:
    too_large = {"type": "urn:x", "title": "Too large", "detail": "Too many.", "remedy": "Split it.", "max_nodes": 1}
    stub.answers["POST", "/deletions"] = [(413, too_large), accepted(), accepted(id="r2"), accepted(id="r3")]
    stub.answers["GET", "/deletions/r1"] = deletion("failed", failure="Row 3 is damaged.")
    stub.answers["GET", "/deletions/r2"] = deletion("queued")
    stub.answers["GET", "/deletions/r3"] = deletion("completed", explanation="It is forgotten.")
    ran = lethe("delete", "12", "57", "99", "--wait", "--timeout", "0.2")
    assert ran.status == 1
    assert "Row 3 is damaged." in ran.stdout
    assert "Request r2 was not completed" in ran.stderr
    assert "It is forgotten." in ran.stdout


def test_the_evidence_gives_each_figure_a_meaning_and_hides_absent_ones(lethe: CommandLine, stub: LetheStub) -> None:
    words = "One direction was removed: [bold]not markup[/bold]."
    stub.answers["GET", "/deletions/r1"] = deletion("completed", audit=AUDIT, explanation=words, reference="DSR-17")
    ran = lethe("audit", "show", "r1")
    lines = {line.split("  ")[0]: line for line in ran.stdout.splitlines()}
    assert "0.2346" in lines["Weight on these nodes before"]
    assert "What the model had learned from these nodes alone" in lines["Weight on these nodes before"]
    assert "3.00 × 10⁻¹⁵" in lines["Span residual"]
    assert "Weight on the test column before" not in lines
    assert "2026-03-02 09:15:04.120 UTC" in lines["received"]
    assert words in ran.stdout
    assert "5 requests, 9 nodes" in ran.stdout
    steps = ("Computing the new weights", "Writing the new version", "Measuring what is on the disk", "new")
    assert [line for line in lines if line in steps] == list(steps)
    assert "DSR-17" in lines["reference"]


def test_with_the_evidence_it_says_what_noise_hides_and_what_not(lethe: CommandLine, stub: LetheStub) -> None:
    promised = {"publication_epsilon": 1.0, "publication_delta": 1e-4, "publications_planned": 100}
    audit = AUDIT | promised | {"publication_mu": 0.0314}
    stub.answers["GET", "/deletions/r1"] = deletion("completed", audit=audit, guarantee="retrained")
    assert noise_in_words(1.0, 1e-4, 100, 0.0314) in lethe("audit", "show", "r1").stdout
    stub.answers["GET", "/deletions/r1"] = deletion("completed", audit=AUDIT, guarantee="retrained")
    assert "noise" not in lethe("audit", "show", "r1").stdout


def test_predictions_name_their_version_and_missing_nodes_fail(lethe: CommandLine, stub: LetheStub) -> None:
    known = {"node": "12", "label": "Theory", "probabilities": {"Theory": 0.97123, "Art": 0.02877}}
    stub.answers["POST", "/predict"] = 200, {"model_version": 7, "predictions": [known], "unknown": [], "deleted": []}
    ran = lethe("predict", "12")
    assert (ran.status, ran.stderr) == (0, "")
    assert "Model version 7" in ran.stdout
    assert "0.9712" in ran.stdout
    answer = {"model_version": 7, "predictions": [known], "unknown": ["no"], "deleted": ["57"]}
    stub.answers["POST", "/predict"] = 200, answer
    ran = lethe("predict", "12", "57", "no")
    assert ran.status == 3
    assert "Theory" in ran.stdout
    assert "57: deleted on request" in ran.stderr
    assert "no: unknown node" in ran.stderr


def test_nodes_outside_the_graph_are_predicted_line_by_line_in_as_many_requests_as_needed(
    lethe: CommandLine, stub: LetheStub, tmp_path: Path
) -> None:
    file, one = tmp_path / "new.jsonl", {"label": "Theory", "probabilities": {"Theory": 0.97123}}
    file.write_text('{"features": {"3": 1}, "neighbours": ["12"]}\n{"features": [0, 1.5]}\n')
    too_many = 413, {"detail": "Too many.", "remedy": "Split.", "max_nodes": 1}
    stub.answers["POST", "/predict-new"] = [too_many, (200, {"model_version": 7, "predictions": [one]})]
    ran = lethe("predict", "--new", str(file))
    assert (ran.status, ran.stderr) == (0, "")
    assert [line.split()[0] for line in ran.stdout.splitlines() if "0.9712" in line] == ["1", "2"]
    both = [{"features": {"3": 1.0}, "neighbours": ["12"]}, {"features": [0.0, 1.5], "neighbours": []}]
    assert [body["nodes"] for _, _, body in stub.asked] == [both, both[:1], both[1:]]
    for wrong, said in (
        ("{}", "Line 1 does not fit"),
        ('{"features": [], "id": "a"}', "Line 1 does not fit"),
        ("", "no lines"),
    ):
        file.write_text(wrong)
        ran = lethe("predict", "--new", str(file))
        assert (ran.status, said in ran.stderr) == (2, True), ran.stderr
    for arguments in ((), ("12", "--new", str(file))):
        assert "Give ids of nodes or --file, or --new" in lethe("predict", *arguments).stderr


def test_a_list_of_nodes_to_predict_is_sent_in_as_many_parts_as_the_service_takes(
    lethe: CommandLine, stub: LetheStub, tmp_path: Path
) -> None:
    ids = tmp_path / "ids.txt"
    empty: dict[str, list[str]] = {"predictions": [], "unknown": [], "deleted": []}
    ids.write_text("a\nb\n\nc\n")
    too_many = 413, {"detail": "Too many.", "remedy": "Split.", "max_nodes": 2}
    stub.answers["POST", "/predict"] = [too_many, *((200, {"model_version": version, **empty}) for version in (7, 8))]
    ran = lethe("predict", "--file", str(ids), "--json")
    assert [body["nodes"] for _, _, body in stub.asked] == [["a", "b", "c"], ["a", "b"], ["c"]]
    assert [json.loads(line)["model_version"] for line in ran.stdout.splitlines()] == [7, 8]
    assert ran.status == 0


def test_all_predictions_go_to_a_new_private_file_in_the_format_of_its_ending(
    lethe: CommandLine, stub: LetheStub, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    for ending, form in ((".parquet", "parquet"), (".feather", "arrow"), (".arrow", "arrow"), (".CSV", "csv")):
        out = folder / f"all{ending}"
        stub.answers["GET", f"/predictions?format={form}"] = 200, b"the file"
        assert lethe("predict", "--all", "--out", str(out)).status == 0
        assert (out.read_bytes(), stat.S_IMODE(out.stat().st_mode)) == (b"the file", 0o600)
    before = sorted(folder.iterdir())
    assert lethe("predict", "--all", "--out", str(before[0])).status == 4
    stub.answers["GET", "/predictions?format=ndjson"] = 400, {"detail": "Not this.", "remedy": "Stop."}
    assert lethe("predict", "--all", "--out", str(folder / "all.ndjson")).status == 4
    assert sorted(folder.iterdir()) == before
    for wrong in (["--all"], ["--out", "a.csv"], ["--all", "--out", "a.csv", "12"], ["--all", "--out", "a.xlsx"], []):
        assert lethe("predict", *wrong).status == 2


def test_url_and_key_are_those_of_the_service_that_runs_in_the_home(
    lethe: CommandLine, stub: LetheStub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("LETHE_URL")
    monkeypatch.delenv("LETHE_KEY")
    run = tmp_path / "home" / "run"
    run.mkdir(parents=True)
    facts = ServerFacts(os.getpid(), stub.url, "m", datetime.now(UTC), {})
    (run / "server.json").write_bytes(msgspec.json.encode(facts))
    (run / "admin.key").write_text("lethe_admin\n")
    stub.answers["GET", "/deletions/r1"] = deletion("queued")
    assert lethe("audit", "show", "r1").status == 0
    assert lethe("audit", "show", "r1", "--url", stub.url).status == 0
    assert stub.keys == 2 * ["Bearer lethe_admin"]
    # Its key goes to no one else, whatever their name for it.
    (run / "server.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(facts, url="http://127.0.0.1:1")))
    monkeypatch.setenv("LETHE_URL", stub.url)
    refused = lethe("audit", "show", "r1")
    assert (refused.status, "No API key was given." in refused.stderr) == (2, True)
    assert len(stub.keys) == 2


@pytest.mark.parametrize(
    "facts",
    [
        "",
        "{}",
        "[1]",
        '{"pid": "x", "url": "y", "model": "m", "started_at": "2026-03-02T12:00:00Z", "pids": {}}',
        '{"pid": 999999999, "url": "y", "model": "m", "started_at": "2026-03-02T12:00:00Z", "pids": {}}',
        # After a power cut: its id now belongs to another process.
        f'{{"pid": {os.getpid()}, "url": "y", "model": "m", "started_at": "2020-03-02T12:00:00Z", "pids": {{}}}}',
    ],
    ids=["empty", "nothing", "a list", "a word", "nobody", "a stranger"],
)
def test_facts_of_no_running_service_are_ignored(
    lethe: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, facts: str
) -> None:
    from service.cli.server import read_facts

    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "server.json").write_text(facts)
    assert read_facts(tmp_path) is None


SUMMARY = {
    "model": "cora",
    "since": "2026-10-01",
    "until": None,
    "requests": 12,
    "by_status": {"queued": 1, "applied": 0, "completed": 11, "failed": 0, "cancelled": 0},
    "by_kind": {"node": 12, "edge": 0, "features": 0},
    "by_guarantee": {"span": 0, "retrained": 11, "graph_only": 0},
    "by_repair": {"none": 0, "pending": 0, "converged": 11, "not_converged": 0},
    "refused": 23,
    "open": 1,
    "oldest_open": {"id": "r1", "received_at": RECEIVED},
    "open_past_deadline": 0,
    "open_near_deadline": 1,
    "open_failed": 0,
    "deadline_days": 30,
    "months": [{"month": "2026-10-01", "on_time": 11, "late": 1, "on_time_share": 11 / 12}],
    "seconds_to_applied": {"p50": 0.61, "p95": 1.7, "p99": 2.4},
    "seconds_to_completed": {"p50": None, "p95": None, "p99": None},
    "unchanged_projection_share": 0.985,
    "model_version": 64,
    "rank": None,
    "live_nodes": 2588,
    "noise": "Everything published has noise.",
}


def test_the_summary_is_printed_and_fails_when_a_request_is_overdue(lethe: CommandLine, stub: LetheStub) -> None:
    stub.answers["GET", "/audit/summary?since=2026-10-01"] = 200, SUMMARY
    ran = lethe("audit", "summary", "--since", "2026-10-01")
    assert ran.status == 0
    for text in (
        "2026-10",
        "91.7%",
        "cora",
        "r1, 2026-03-02 09:15:04 UTC",
        "610 ms (50 %)",
        "98.5%",
        "guarantee retrained",
        "2,588",
        "Everything published has noise.",
    ):
        assert text in ran.stdout
    assert re.search(r"^Refused +23\s*$", ran.stdout, re.MULTILINE)
    for wrong in ("open_past_deadline", "open_failed"):
        stub.answers["GET", "/audit/summary"] = 200, SUMMARY | {wrong: 2}
        assert lethe("audit", "summary").status == 1


def test_a_decision_is_sent_with_its_reason(lethe: CommandLine, stub: LetheStub) -> None:
    stub.answers["POST", "/deletions/r1/handle"] = deletion("failed")
    ran = lethe("handle", "r1", "--reason", "Withdrawn.")
    assert (ran.status, ran.stdout) == (0, "r1 handled\n")
    stub.answers["POST", "/deletions/r1/extend"] = deletion("queued", due_at="2027-01-31T23:59:59Z")
    ran = lethe("extend", "r1", "--until", "2027-01-31", "--reason", "Many at once.")
    assert (ran.status, ran.stdout) == (0, "r1 due 2027-01-31 23:59:59 UTC\n")
    assert lethe("extend", "r1", "--until", "2027-01-31").status == 2
    stub.answers["POST", "/deletions/r1/hold"] = deletion("queued", held_at="2027-01-31T23:59:59Z")
    ran = lethe("hold", "r1", "--reason", "Needed in a lawsuit.")
    assert (ran.status, ran.stdout) == (0, "r1 on hold\n")
    stub.answers["POST", "/deletions/r1/release"] = deletion("queued", due_at="2027-02-28T23:59:59Z")
    ran = lethe("release", "r1")
    assert (ran.status, ran.stdout) == (0, "r1 released, due 2027-02-28 23:59:59 UTC\n")


def test_requests_are_written_to_a_file_of_ones_own(lethe: CommandLine, stub: LetheStub, tmp_path: Path) -> None:
    asked = "/audit/export?format=ndjson&since=2026-10-01T00%3A00%3A00%2B00%3A00&guarantee=span&span_residual_min=1e-09"
    stub.answers["GET", asked] = 200, {"id": "r1"}
    out = tmp_path / "audit.ndjson"
    arguments = ("--since", "2026-10-01", "--guarantee", "span", "--threshold", "span_residual_min=1e-9")
    ran = lethe("audit", "requests", "--format", "ndjson", *arguments, "--out", out)
    assert ran.status == 0, ran.stderr
    assert json.loads(out.read_text()) == {"id": "r1"}
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert lethe("audit", "requests", "--out", out).status == 4
    assert lethe("audit", "requests", "--threshold", "span_residual_min=much").status == 2
