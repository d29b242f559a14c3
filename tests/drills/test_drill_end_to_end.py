"""Drills of a Lethe process: the reported norms match the file of the weights.

`.ci/run` has a drill of such a process in `tests/dashboard/test_dashboard.py`.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from projector.forgetting.canaries import Canaries
from service.cli.console import ExitStatus
from service.cli.main import main
from service.domain.drills import MOST_LEFT
from tests.support.models.trained_models import SMALL, Models
from tests.support.processes.lethe_process import KEY, LetheProcess, figures_of


@pytest.mark.slow
def test_drills_take_the_canaries_out_of_the_weights(
    models: Models,
    serve: Callable[..., LetheProcess],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    model = models.trained(SMALL, cohorts=2)
    canaries = Canaries(**figures_of(model)["canaries"])
    lethe = serve(model, repair="always")
    monkeypatch.setenv("LETHE_URL", lethe.url)
    monkeypatch.setenv("LETHE_KEY", KEY)

    def drill() -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["drill"])
        shown = capsys.readouterr()
        return int(ended.value.code or 0), shown.out, shown.err

    status, out, err = drill()
    assert status == 0, err
    assert "cohort 1" in out
    with lethe.client() as client:
        [first] = client.drills().drills
    assert (first.cohort, first.passed) == (1, True)
    assert first.channel_norm_before is not None
    assert first.channel_norm_after is not None
    rows = lethe.weights()[:, canaries.column(1)]
    assert np.sum(np.linalg.norm(rows, axis=(1,))) <= MOST_LEFT * first.channel_norm_before
    assert np.linalg.norm(lethe.weights()[:, canaries.column(2)]) > 0.1 * first.channel_norm_before

    status, out, err = drill()
    assert status == 0, err
    assert "cohort 2" in out
    assert "passed" in out
    assert "0 of 2 cohorts remain" in err
    assert not lethe.weights()[:, canaries.column(2)].any()
    with lethe.client() as client:
        done = client.drills()
        assert [(one.cohort, one.passed) for one in done.drills] == [(2, True), (1, True)]
        assert done.cohorts.remaining == 0
        assert client.model().live_nodes == figures_of(model)["nodes"] - 2 * canaries.nodes
        answer = client.predict_many([canaries.cohort_ids(1)[0], canaries.cohort_ids(2)[0]])
        assert len(answer.deleted) == 2
        requests = [one for one in client.deletions() if one.reference in ("drill 1", "drill 2")]
        assert len(requests) == 2

    status, out, err = drill()
    assert (status, out) == (ExitStatus.REFUSED, "")
    assert "All 2 cohorts of canaries are used." in err
    assert "--canaries" in err
