"""Fixtures for tests of drills."""

from tests.support.service.serving import models, serve

__all__ = ["models", "serve"]
