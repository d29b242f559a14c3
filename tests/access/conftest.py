"""An issuer of tokens on this machine."""

from collections.abc import AsyncIterator

import pytest

from tests.support.service.issuer import Issuer, issuing


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    async with issuing() as running:
        yield running
