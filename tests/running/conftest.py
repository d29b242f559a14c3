"""Fixtures for tests of processes."""

from tests.support.service.running import small_model

__all__ = ["small_model"]
