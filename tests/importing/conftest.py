"""Fixtures for tests of imports."""

from tests.support.service.imports import new_model
from tests.support.service.repairs import deferring, gate, repairing_settings
from tests.support.service.running import settings, small_model

__all__ = ["deferring", "gate", "new_model", "repairing_settings", "settings", "small_model"]
