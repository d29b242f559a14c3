"""The worked examples of docs/library.md and docs/embeddings.md and the lines of the README, run as printed."""

import re
from pathlib import Path

import pytest

from tests.support.everyday import everyday
from tests.support.preloaded import ROOT

#: A block of Python and the block of text after it, its output.
_EXAMPLE = re.compile(r"```python\n(.*?)```\n+```text\n(.*?)```", re.DOTALL)
_NUMBER = re.compile(r"\d+(\.\d+)?(e[-+]\d+)?")


def examples(page: str) -> list[tuple[str, str]]:
    return [(match[1], match[2]) for match in _EXAMPLE.finditer((ROOT / page).read_text())]


_ALL = examples("docs/library.md") + examples("docs/embeddings.md") + examples("README.md")


@pytest.mark.ci
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("code", "printed"), everyday(_ALL, *(one for one in _ALL if "160 nodes" not in one[1])))
def test_an_example_prints_what_the_page_says(
    code: str, printed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The last digits of figures differ between machines, so words and magnitudes are compared.
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "example", "exec"), {"__name__": "example"})
    found = capsys.readouterr().out
    assert _NUMBER.sub("#", found) == _NUMBER.sub("#", printed)
    for ours, theirs in zip(_NUMBER.finditer(found), _NUMBER.finditer(printed), strict=True):
        seen, said = float(ours[0]), float(theirs[0])
        assert seen == pytest.approx(said, rel=0.1) or max(seen, said) < 1e-7


def test_every_page_has_its_examples() -> None:
    assert len(examples("docs/library.md")) == 5
    assert len(examples("docs/embeddings.md")) == 1
    assert len(examples("README.md")) == 1
