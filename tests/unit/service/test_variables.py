"""A `LETHE_…` variable is read by something, or refused by name."""

import re

import pytest

from service.errors import ConfigurationError
from service.settings import OTHER_VARIABLES, Settings, require_known_variables, variable_name
from tests.support.clients.command_line import CommandLine
from tests.support.everyday import every_case
from tests.support.preloaded import ROOT

NAMED = re.compile(r"(?<![\w])LETHE_[A-Z][A-Z_]*[A-Z]\b")
SETTINGS = [variable_name(field) for field in Settings.model_fields]


@every_case("name", [name for name in SETTINGS if name.startswith("LETHE_")])
def test_a_misspelled_setting_is_refused_with_its_right_name(name: str) -> None:
    letter = len("LETHE_") + (len(name) - len("LETHE_")) // 2
    for wrong in (name[:-1], name + "S", name[:letter] + name[letter + 1 :], name.lower() + "x"):
        if wrong in SETTINGS or wrong in OTHER_VARIABLES:
            continue
        with pytest.raises(ConfigurationError) as refused:
            require_known_variables({wrong: "a secret", "PATH": "/bin"})
        assert refused.value.detail.startswith(f"{wrong}: unknown variable; did you mean ")
        assert "a secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("LETHE_DEADLINE_DAY", "LETHE_DEADLINE_DAYS"),
        ("LETHE_DATABASE_URL", "DATABASE_URL"),
        ("LETHE_REDIS_URL", "REDIS_URL"),
    ],
)
def test_the_nearest_variable_is_named(wrong: str, right: str) -> None:
    with pytest.raises(ConfigurationError, match=f"did you mean {right}\\?"):
        require_known_variables({wrong: "7"})


def test_one_that_is_near_to_none_is_refused_too() -> None:
    with pytest.raises(ConfigurationError) as refused:
        require_known_variables({"LETHE_ZZZ": "1", "LETHE_QQQ": "2"})
    assert refused.value.detail == "LETHE_QQQ: unknown variable.\nLETHE_ZZZ: unknown variable."


def test_known_empty_and_foreign_variables_are_left_alone() -> None:
    known = dict.fromkeys([*SETTINGS, *OTHER_VARIABLES, "lethe_port", "_LETHE_COMPLETE"], "x")
    links = ("LETHE_SERVICE_HOST", "LETHE_API_SERVICE_PORT_HTTP", "LETHE_PORT_8000_TCP", "LETHE_PORT_8000_TCP_ADDR")
    require_known_variables(
        known
        | dict.fromkeys(links, "10.0.0.1")
        | {"LETHE_PRT": "", "LETHER": "x", "LETHE_API_PORT": "tcp://10.0.0.1:80"}
    )


def test_every_variable_that_the_project_names_is_known() -> None:
    folders = [file for folder in ("docker", "docs", "examples") for file in (ROOT / folder).rglob("*.*")]
    files = [ROOT / name for name in ("lethe", "docker-compose.yml", "README.md", "CONTRIBUTING.md")]
    read = [
        *files,
        ROOT / "docker" / "Dockerfile",
        *(one for one in folders if one.suffix in (".md", ".sh", ".yml", ".py")),
    ]
    named = {name for file in read for name in NAMED.findall(file.read_text())}
    assert {"LETHE_HOME", "LETHE_DATA"} <= named
    assert named <= {*SETTINGS, *OTHER_VARIABLES}


def test_every_command_refuses_one(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LETHE_DEADLINE_DAY", "7")
    lethe = CommandLine(capsys)
    for command in (
        "doctor",
        "migrate",
        "serve",
        "train --out x",
        "delete 1",
        "keys list",
        "audit show",
        "webhooks list",
    ):
        ran = lethe(*command.split())
        assert (ran.status, ran.stdout) == (2, ""), command
        assert "LETHE_DEADLINE_DAYS" in ran.stderr
