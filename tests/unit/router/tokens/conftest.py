"""Token sources by name, with a sessions that is closed at the end."""

import pytest

from router.engines.sessions import WorkerSessions
from router.tokens import SOURCES, LocalModels
from tests.support.certificates import system_trust


@pytest.fixture
async def sessions():
    async with WorkerSessions(system_trust()) as sessions:
        yield sessions


@pytest.fixture
def models():
    models = LocalModels()
    yield models
    models.close()


@pytest.fixture
def make_source(sessions, models):
    return lambda name, host: SOURCES[name](host, sessions, models)
