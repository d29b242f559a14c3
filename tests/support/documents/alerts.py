"""The shipped alerts, and the headings that they link to."""

import re
from typing import Any

import yaml

from tests.support.preloaded import ROOT

DOCKER = ROOT / "docker"
RULES: dict[str, Any] = yaml.safe_load((DOCKER / "prometheus" / "rules.yml").read_text())
ALERTS: list[dict[str, Any]] = [rule for group in RULES["groups"] for rule in group["rules"]]


def anchor(heading: str) -> str:
    """Return the fragment of a Markdown heading."""
    return re.sub(r"[^\w\- ]", "", heading.lstrip("#").strip().lower()).replace(" ", "-")
