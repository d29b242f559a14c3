"""Fixtures for tests of repairs."""

import pytest

from service.settings import Settings
from tests.support.service.imports import new_model
from tests.support.service.repairs import deferring, gate, repairing_settings
from tests.support.service.running import small_model, together

__all__ = ["deferring", "gate", "new_model", "repairing_settings", "small_model", "together"]


@pytest.fixture
def settings(repairing_settings: Settings) -> Settings:
    return repairing_settings
