"""Fixtures for tests of weights published with noise."""

import pytest

from service.settings import Settings
from tests.support.service.repairs import repairing_settings as exact_settings
from tests.support.service.running import small_model, together

__all__ = ["exact_settings", "small_model", "together"]


@pytest.fixture
def settings(exact_settings: Settings) -> Settings:
    return exact_settings.model_copy(update={"certify": "1,1e-4", "certify_publications": 100})
