"""docs/data.md, from two tables to a served, forgotten node, typed as printed."""

import shlex
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.support.documents.newcomer import Newcomer, checkout
from tests.support.documents.shown import commands
from tests.support.models.users import users
from tests.support.preloaded import ROOT, Start
from tests.support.processes.lethe_process import LetheProcess

SHOWN = [
    command
    for command in commands(ROOT / "docs" / "data.md")
    if command.text.startswith(("./lethe train --nodes", "LETHE_HOME=users "))
]


@pytest.mark.slow
def test_the_section_about_tables_does_what_it_shows(tmp_path: Path, lethe_start: Start) -> None:
    folder = checkout(tmp_path / "lethe")
    (nodes, edges), (new, _) = users(), users(3, seed=1)
    new = new.drop(["split"]).set_column(0, "user_id", [["new-0", "new-1", "new-2"]])
    follows = {"follower": ["new-0", "u-7"], "followed": ["u-7", "new-2"]}
    written = {
        "users": nodes,
        "follows": edges,
        "joined": new,
        "joined-follows": pa.table(follows),
        "corrected": nodes.slice(5, 4),
        "leavers": nodes.select(["user_id"]).slice(20, 3),
    }
    for name, table in written.items():
        parquet.write_table(table, folder / f"{name}.parquet")
    newcomer = Newcomer(folder, {"LETHE_DEVICE": "cpu"}, {})
    lethe = LetheProcess(lethe_start, folder / "users", admin_key="", repair="always", repair_budget=60)
    printed = []
    try:
        for command in SHOWN:
            if "serve" in shlex.split(command.text):
                lethe.start()
                continue
            status, output = newcomer.typed(command.text)
            printed.append(output)
            assert status == 0, f"{command}\n{output}"
        for node in ("u-1", "u-21"):
            assert newcomer.typed(f"LETHE_HOME=users ./lethe predict {node}")[0] == 3
        assert newcomer.typed("LETHE_HOME=users ./lethe predict new-0 u-5")[0] == 0
    finally:
        newcomer.leave()
        lethe.close()
    assert "Read 120 nodes" in printed[0]
