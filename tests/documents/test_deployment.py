"""The container files: their form, and that the settings, files and services in them exist."""

import json
import re
from typing import Any

import jsonschema_rs
import pytest
import yaml

from service.settings import Settings, variable_name
from tests.support.clients.command_line import CommandLine
from tests.support.preloaded import ROOT

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()
#: The Compose specification's schema, as check-jsonschema 0.39.0 ships it.
SCHEMA = json.loads((ROOT / "tests" / "support" / "documents" / "compose-spec.json").read_text())


def test_the_compose_file_is_one_by_the_specifications_schema() -> None:
    compose = jsonschema_rs.validator_for(SCHEMA)
    assert [str(error) for error in compose.iter_errors(COMPOSE)] == []

    misspelt = {"services": {"api": COMPOSE["services"]["api"] | {"depend_on": ["redis"]}}}
    [error] = compose.iter_errors(misspelt)
    assert "depend_on" in error.message


def test_every_foreign_image_is_pinned_by_its_digest() -> None:
    images = {service["image"] for service in COMPOSE["services"].values() if "build" not in service}
    [base] = re.findall(r"^ARG BASE=(.+)$", DOCKERFILE, re.MULTILINE)
    assert set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)) == {"${BASE}"}
    for image in (base, *images):
        assert re.fullmatch(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}", image), image


def test_every_setting_given_to_the_container_is_one() -> None:
    settings = {variable_name(name) for name in Settings.model_fields}
    given = set(re.findall(r"\b(LETHE_[A-Z_]+)=", DOCKERFILE))
    for service in ("prepare", "api", "unlearner-cpu", "unlearner-gpu", "worker"):
        given |= set(COMPOSE["services"][service]["environment"])

    assert given <= settings
    assert {"DATABASE_URL", "REDIS_URL", "LETHE_ADMIN_KEY", "LETHE_HOME", "LETHE_DEVICE"} <= given


def test_the_image_holds_what_it_copies_and_runs_as_nobody_special() -> None:
    ignored = (ROOT / "docker" / "Dockerfile.dockerignore").read_text().splitlines()
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    for source in {part for line in copied for part in line.split()}:
        assert (ROOT / source).exists(), source
        assert f"!{source}" in ignored
    assert re.search(r"^USER lethe$", DOCKERFILE, re.MULTILINE)
    assert "/readyz" in DOCKERFILE


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_each_profile_has_one_unlearner_once_all_is_prepared(kind: str) -> None:
    (name,) = [name for name, service in COMPOSE["services"].items() if service.get("profiles") == [kind]]
    unlearner = COMPOSE["services"][name]

    assert unlearner["command"] == ["serve", "--role", "unlearner"]
    assert unlearner["depends_on"] == {
        "prepare": {"condition": "service_completed_successfully"},
        "redis": {"condition": "service_healthy"},
    }
    prepare = COMPOSE["services"]["prepare"]
    assert (prepare["command"], prepare["restart"]) == (["serve", "--role", "prepare"], "no")
    assert prepare["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert ("deploy" in unlearner) == (kind == "gpu")
    assert COMPOSE["services"]["api"]["depends_on"][name] == {"condition": "service_healthy", "required": False}


def test_processes_share_a_volume_and_have_no_login_but_their_own() -> None:
    prepare, api, unlearner = (COMPOSE["services"][name] for name in ("prepare", "api", "unlearner-cpu"))
    assert prepare["volumes"] == api["volumes"] == unlearner["volumes"]
    (home,) = [volume.partition(":")[2] for volume in api["volumes"] if volume.startswith("lethe:")]
    assert unlearner["environment"]["LETHE_SHARE"].startswith(f"{home}/")
    assert "//lethe:" in prepare["environment"]["DATABASE_URL"]
    for role, service in {"lethe_api": api, "lethe_unlearner": unlearner}.items():
        assert f"//{role}:" in service["environment"]["DATABASE_URL"]
        assert not {"POSTGRES_PASSWORD", "LETHE_ADMIN_KEY"} & set(re.findall(r"\$\{(\w+)", str(service)))


def test_a_worker_sees_the_model_and_the_unlearner_and_nothing_else() -> None:
    worker, unlearner = COMPOSE["services"]["worker"], COMPOSE["services"]["unlearner-cpu"]
    [mounted] = worker["volumes"]
    seen = f"{mounted['target'].removesuffix(mounted['volume']['subpath'])}"
    assert f"{mounted['source']}:{seen.rstrip('/')}" in unlearner["volumes"]
    assert mounted["read_only"]
    assert re.search(rf"LETHE_MODEL={mounted['target']}/\w+", DOCKERFILE)
    assert worker["networks"] == ["workers"]
    assert COMPOSE["networks"]["workers"] == {"internal": True}
    [met] = unlearner["networks"]["workers"]["aliases"]
    assert worker["environment"] == {"LETHE_DEVICE": "cpu", "LETHE_WORKERS_ADDRESS": met}
    assert unlearner["environment"]["LETHE_WORKERS_ADDRESS"] == met
    others = {name for name, service in COMPOSE["services"].items() if "workers" in service.get("networks", ())}
    assert others == {"worker", "unlearner-cpu", "unlearner-gpu"}


def test_prometheus_asks_what_answers_for_all() -> None:
    (job,) = yaml.safe_load((ROOT / "docker" / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["api:8000"]}]
    assert re.search(r"LETHE_PORT=8000\b", DOCKERFILE)


@pytest.mark.parametrize("name", ["unlearner-cpu", "unlearner-gpu"])
def test_the_unlearners_health_check_is_a_command_that_there_is(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    kind, program, *arguments = COMPOSE["services"][name]["healthcheck"]["test"]
    assert (kind, program) == ("CMD", "/opt/lethe/lethe")
    assert "/opt/lethe/lethe" in DOCKERFILE
    ran = CommandLine(capsys)(*arguments, "--home", "/nowhere")
    assert ran.status == 1
    assert "No unlearner runs here" in ran.stdout


def test_what_is_mounted_exists_and_no_port_leaves_the_machine() -> None:
    for name, service in COMPOSE["services"].items():
        for volume in service.get("volumes", []):
            source = volume["source"] if isinstance(volume, dict) else volume.partition(":")[0]
            if source.startswith("./"):
                assert (ROOT / source).exists(), source
            elif not source.startswith("$"):
                assert source in COMPOSE["volumes"]
        assert all(str(port).startswith("127.0.0.1:") for port in service.get("ports", [])), name


def test_no_secret_has_a_default() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    for secret in (
        "POSTGRES_PASSWORD",
        "LETHE_API_DATABASE_PASSWORD",
        "LETHE_UNLEARNER_DATABASE_PASSWORD",
        "REDIS_PASSWORD",
        "LETHE_ADMIN_KEY",
        "GRAFANA_PASSWORD",
        "GRAFANA_DATABASE_PASSWORD",
    ):
        uses = re.findall(r"\$\{" + secret + r"([^}]*)\}", text)
        assert uses
        assert all(use.startswith(":?") for use in uses), secret
