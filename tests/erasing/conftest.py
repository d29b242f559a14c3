"""Fixtures for tests of erasure."""

from tests.support.service.imports import new_model
from tests.support.service.running import settings, small_model
from tests.support.service.serving import models, serve

__all__ = ["models", "new_model", "serve", "settings", "small_model"]
