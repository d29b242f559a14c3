"""The Docker image is built and used without an engine: docker/build-here.sh, as an operator would run it."""

import os
import subprocess

import pytest

from tests.support.preloaded import ROOT

NOT_HERE = 3


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_image_trains_serves_deletes_and_stops() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LETHE_")}
    done = subprocess.run(
        [ROOT / "docker" / "build-here.sh"], capture_output=True, text=True, check=False, env=environment
    )
    if done.returncode == NOT_HERE:
        pytest.skip(done.stderr.strip())

    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    for shown in ("GET /predict/12: 410", "completed: retrained", "doctor ended with status 0", "runs as uid 10001"):
        assert shown in done.stdout
