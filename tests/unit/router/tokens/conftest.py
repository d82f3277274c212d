"""Token sources by name, with a session that is closed at the end."""

import aiohttp
import pytest

from router.tokens import SOURCES


@pytest.fixture
async def session():
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
def make_source(session):
    return lambda name, host: SOURCES[name](host, session)
