"""The command line of `./lethe reproduce`."""

from pathlib import Path

import pytest

from benchmarks.paper.units import MEASURED, Unit, write
from benchmarks.reproduce import main

pytestmark = pytest.mark.ci


def test_the_report_is_written_beside_the_results_without_measuring(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures: dict[str, float | None] = {"draws": 2708, "unchanged": 2704, "nodes": 1}
    about = {"device": "A machine", "threads": 1, "date": "2026-11-23", "commit": "0123456789"}
    write(tmp_path, Unit("identity", "cora", "lethe, projection", 0), MEASURED, {"single": figures}, 1.0, about)
    main(["report", "--out", str(tmp_path)])
    assert capsys.readouterr().out == f"{tmp_path / 'report.html'}\n"
    assert "Cora 99.85%" in (tmp_path / "report.html").read_text()


def test_what_no_experiment_has_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["closeness", "--method", "gcn"], ["stream", "--dataset", "pubmed"], ["nothing"]):
        with pytest.raises(SystemExit) as ended:
            main([*words, "--out", str(tmp_path)])
        assert ended.value.code == 2
    assert "No experiment has such a method on such a dataset." in capsys.readouterr().err
