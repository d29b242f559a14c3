"""Fixtures of the tests of imports."""

from tests.support.service.imports import new_model
from tests.support.service.running import settings, small_model

__all__ = ["new_model", "settings", "small_model"]
