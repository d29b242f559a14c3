"""The alerts that are shipped, and the headings that they lead to."""

import re
from typing import Any

import yaml

from tests.support.preloaded import ROOT

DOCKER = ROOT / "docker"
RULES: dict[str, Any] = yaml.safe_load((DOCKER / "prometheus" / "rules.yml").read_text())
ALERTS: list[dict[str, Any]] = [rule for group in RULES["groups"] for rule in group["rules"]]


def anchor(heading: str) -> str:
    """The fragment under which a heading of a Markdown page is found."""
    return re.sub(r"[^\w\- ]", "", heading.lstrip("#").strip().lower()).replace(" ", "-")
