"""Fixtures for tests of recovery."""

from tests.support.service.serving import models, serve
from tests.support.service.sites import site, trained

__all__ = ["models", "serve", "site", "trained"]
