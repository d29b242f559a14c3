"""docs/data.md, from two tables to a served, forgotten node, typed as printed."""

import shlex
from pathlib import Path

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
    nodes, edges = users()
    parquet.write_table(nodes, folder / "users.parquet")
    parquet.write_table(edges, folder / "follows.parquet")
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
            assert status == (3 if "predict" in command.text and len(printed) > 4 else 0), f"{command}\n{output}"
    finally:
        newcomer.leave()
        lethe.close()
    assert "Read 120 nodes" in printed[0]
    assert "completed" in "".join(printed)
