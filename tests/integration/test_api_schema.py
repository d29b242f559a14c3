"""The interface does what its own OpenAPI description says, for requests that fit it and for requests that do not."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import api_harness
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import positive_data_acceptance


@dataclass(frozen=True)
class Served:
    """A server in a process of its own, and a key with all scopes."""

    url: str
    key: str


@pytest.fixture
def served(database_url: str, tmp_path: Path) -> Iterator[Served]:
    """The application behind a real server."""
    program = Path(api_harness.__file__)
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, str(program), database_url, str(tmp_path)],
            env=os.environ | {"PYTHONPATH": str(program.parents[2])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        with process:
            address = process.stdout.readline().split()
            assert len(address) == 2, (tmp_path / "log").read_text()
            yield Served(*address)
            process.stdin.close()


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_answers_fit_their_description(served: Served, mode: GenerationMode) -> None:
    schema = schemathesis.openapi.from_url(f"{served.url}/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) >= 11
    for operation in operations:
        if mode is GenerationMode.NEGATIVE and not (operation.body or operation.query):
            continue  # nothing in it can be wrong

        @settings(max_examples=10, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
        @given(operation.as_strategy(generation_mode=mode))
        def answers_fit(case: schemathesis.Case) -> None:
            case.call_and_validate(
                headers={"Authorization": f"Bearer {served.key}"},
                # Ids that fit the schema are still ids of no node, and cursors of no page.
                excluded_checks=[positive_data_acceptance],
            )

        answers_fit()
