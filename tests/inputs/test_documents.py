"""A receipt or an export does not verify if any member was added, removed, repeated or changed."""

import json
from pathlib import Path
from typing import Any

import pytest

from service.cli.console import ExitStatus
from service.log.export_pages import export_lines
from tests.support.clients.command_line import CommandLine, Ran
from tests.support.everyday import everyday
from tests.support.inputs.asked import Asked
from tests.support.inputs.documents import changed, text
from tests.support.inputs.routes import Call
from tests.support.inputs.variations import Sweep

pytestmark = pytest.mark.ci

#: Unsigned members, which the manual says not to trust.
UNSIGNED = ("public_keys", "log", "exported_at")


async def documents(ask: Asked) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a receipt, and the lines of an export."""
    receipt = json.loads((await ask(Call("GET", f"/deletions/{ask.filled['request_id']}/receipt"))).body)
    lines = [json.loads(json.dumps(line)) async for page in export_lines(ask.api.engine) for line in page]
    return receipt, lines


@pytest.mark.parametrize("most", everyday((1, 3), 1))
async def test_a_changed_document_does_not_verify(
    ask: Asked, capsys: pytest.CaptureFixture[str], tmp_path: Path, most: int
) -> None:
    receipt, lines = await documents(ask)
    key = receipt["public_keys"][0]
    file = tmp_path / "document.json"

    def verified(content: str) -> Ran:
        file.write_text(content)
        return CommandLine(capsys)("audit", "verify", file, "--key", key)

    whole = "\n".join(map(text, lines)) + "\n"
    for good in (text(receipt), whole):
        ran = verified(good)
        assert ran.status == ExitStatus.DONE, ran.stderr
    sweep = Sweep("documents")
    cases = [(text(other), name) for other, name in changed(receipt, sweep, most)]
    for at, line in enumerate(lines):
        for other, name in changed(line, sweep, most):
            cases.append(("\n".join(map(text, [*lines[:at], other, *lines[at + 1 :]])) + "\n", name))
    for content, name in sweep.cases(cases, None if most > 1 else 40):
        if verified(content).status == ExitStatus.DONE and name not in UNSIGNED:
            sweep.find(content, f"{name}: verified")
    sweep.judge()
