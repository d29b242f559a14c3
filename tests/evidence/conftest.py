"""Fixtures for tests of evidence."""

from tests.support.service.repairs import deferring, gate, repairing_settings
from tests.support.service.running import settings, small_model, together
from tests.support.service.serving import models, serve

__all__ = ["deferring", "gate", "models", "repairing_settings", "serve", "settings", "small_model", "together"]
