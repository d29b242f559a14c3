"""Fixtures for tests of accepting deletion requests."""

from tests.support.service.running import settings, small_model, together
from tests.support.service.serving import models, serve

__all__ = ["models", "serve", "settings", "small_model", "together"]
