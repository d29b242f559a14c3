"""What the container files name exists: settings, files, services."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.settings import Settings, variable_name

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()


def test_every_setting_given_to_the_container_is_one() -> None:
    settings = {variable_name(name) for name in Settings.model_fields}
    given = set(re.findall(r"\b(LETHE_[A-Z_]+)=", DOCKERFILE))
    for service in ("lethe-cpu", "lethe-gpu"):
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
def test_each_profile_has_one_lethe_after_its_servers(kind: str) -> None:
    (name,) = [name for name, service in COMPOSE["services"].items() if service.get("profiles") == [kind]]
    lethe = COMPOSE["services"][name]

    assert lethe["depends_on"] == {
        server: {"condition": "service_healthy"} for server in ("postgres", "redis") if server in COMPOSE["services"]
    }
    assert ("deploy" in lethe) == (kind == "gpu")


def test_what_is_mounted_exists_and_no_port_leaves_the_machine() -> None:
    for name, service in COMPOSE["services"].items():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
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
