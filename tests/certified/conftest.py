"""Fixtures for tests of weights published with noise."""

from pathlib import Path

import pytest

from service.settings import Settings
from tests.support.service.running import settings_of, small_model, together

__all__ = ["small_model", "together"]


@pytest.fixture
def exact_settings(small_model: Path, tmp_path: Path, database_url: str, redis_url: str) -> Settings:
    return settings_of(small_model, tmp_path / "home", database_url, redis_url, repair="always")


@pytest.fixture
def settings(exact_settings: Settings) -> Settings:
    return exact_settings.model_copy(update={"certify": "1,1e-4", "certify_publications": 100})
