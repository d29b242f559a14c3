"""The examples run unchanged, and their output is true."""

import re
import runpy
import sys

import pytest

from tests.support.everyday import everyday


@pytest.mark.parametrize(
    "source", everyday(["synthetic:n=300,d=40,classes=3,seed=1", "cora"], "synthetic:n=300,d=40,classes=3,seed=1")
)
def test_scikit_learn_finds_the_weights_that_forgetting_leaves(
    source: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["scikit_learn.py", source])
    runpy.run_module("examples.scikit_learn", run_name="__main__")
    printed = capsys.readouterr().out
    number = r"([\d.]+(?:e[+-]\d+)?)"
    trained, forgotten = re.findall(rf"to scikit-learn's +{number}, whose gradient allows {number}", printed)
    bound = re.search(rf"to retraining +{number} at most", printed)
    moved = re.search(rf"moved by {number}", printed)
    assert bound is not None
    assert moved is not None
    # The printed values are each rounded to two digits.
    assert float(forgotten[0]) <= 1.1 * (float(bound[1]) + float(forgotten[1]))
    assert float(trained[0]) <= 1e-6
    assert float(bound[1]) <= 1e-6
    # Scikit-learn's weights differ by then.
    assert float(moved[1]) >= 0.1
