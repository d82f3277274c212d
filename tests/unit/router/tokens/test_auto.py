"""Engines are asked only where exact overlap is wanted and tokens are offered."""

import pytest

from indexer.blocks import Unit
from router.tokens.base import TokenizeTarget
from tests.support.fake_worker import FakeWorker
from tests.support.token_host import StubHost, prompt_of


@pytest.mark.parametrize(
    ("exact", "offered", "unit"),
    [
        (True, True, Unit.TOKENS),
        (False, True, Unit.BYTES),
        (True, False, Unit.BYTES),
    ],
)
async def test_the_source_that_serves(exact, offered, unit, make_source):
    async with FakeWorker({"POST /tokenize": (200, b'{"tokens":[1,2,3,4]}')}) as worker:
        targets = (TokenizeTarget("w", worker.url, "vllm"),) if offered else ()
        host = StubHost(exact=exact, targets=targets)
        prompt = await prompt_of(make_source("auto", host), b'{"prompt": "some text"}')
        assert prompt.unit is unit
        assert host.fallbacks == {}
