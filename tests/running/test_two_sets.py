"""Two sets of answering processes share a home: an upgrade starts the new one before it stops the old one."""

from pathlib import Path
from typing import Any

import pytest

from service.cli.server import read_facts
from tests.support.preloaded import Start
from tests.support.processes.lethe_process import LetheProcess

pytestmark = pytest.mark.ci


def test_the_second_answers_beside_the_first_and_alone_once_that_has_stopped(
    prepared: Path, servers: dict[str, str], lethe_start: Start
) -> None:
    def part(role: str, name: str, **settings: Any) -> LetheProcess:
        return LetheProcess(lethe_start, prepared, role=role, part=name, **servers, **settings)

    def served_by(one: LetheProcess) -> bool:
        found = read_facts(prepared)
        return found is not None and found.url == one.url

    def shown_by(one: LetheProcess) -> list[str]:
        with one.http() as http:
            page = http.get("/metrics").text
        names = ("api-0", "api2-0", "unlearner")
        return [name for name in names if f'lethe_restarts_total{{process="{name}"}} 0.0' in page]

    old, new = (part("api", name, api_workers=1) for name in ("old", "new"))
    with part("unlearner", "unlearner").start() as unlearner, old.start(), new:
        assert old.delete(["0"]).status == "completed"
        new.start()
        # A deletion accepted by either is gone from both.
        for one, other, node in ((old, new, "1"), (new, old, "2")):
            assert one.delete([node]).status == "completed"
            assert other.predict([node, "40"]).deleted == [node]
            assert shown_by(one) == ["api-0", "api2-0", "unlearner"]
        assert served_by(old)
        assert old.stop().status == 0
        assert served_by(new)
        assert new.delete(["3"]).status == "completed"
        assert new.predict(["3", "40"]).deleted == ["3"]
        assert shown_by(new) == ["api2-0", "unlearner"]
        assert new.stop().status == 0
        assert unlearner.stop().status == 0
