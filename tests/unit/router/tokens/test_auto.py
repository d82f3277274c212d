"""Local tokens before the engine's before bytes, and no trouble where exact overlap is not to be had."""

import pytest

from indexer.blocks import Unit
from router.tokens import LocalModels
from router.tokens.base import TokenizeTarget
from router.tokens.probe import ProbeTokens
from tests.support.fake_worker import FakeWorker
from tests.support.token_host import CHAT, StubHost, prompt_of
from tests.support.tokenizers import TINY

TEXT = b'{"prompt": "some text"}'
REFUSED = b'{"messages": [{"role": "user", "content": "x"}], "chat_template": "{{ 1 }}"}'


@pytest.fixture
def models(has_tokenizer):
    models = LocalModels([str(TINY)] if has_tokenizer else [])
    models.load_named()
    yield models
    models.close()


@pytest.mark.parametrize(
    ("exact", "offered", "has_tokenizer", "unit", "num_calls"),
    [
        (True, True, True, Unit.TOKENS, 0),
        (True, True, False, Unit.TOKENS, 1),
        (True, False, True, Unit.TOKENS, 0),
        (True, False, False, Unit.BYTES, 0),
        (False, True, True, Unit.BYTES, 0),
    ],
)
async def test_the_source_that_serves(exact, offered, unit, num_calls, make_source):
    async with FakeWorker({"POST /tokenize": (200, b'{"tokens":[1,2,3,4]}')}) as worker:
        targets = (TokenizeTarget("w", worker.url, "vllm"),) if offered else ()
        host = StubHost(exact=exact, targets=targets)
        prompt = await prompt_of(make_source("auto", host), TEXT)
        assert (prompt.unit, len(worker.requests), host.fallbacks) == (unit, num_calls, {})


@pytest.mark.parametrize("has_tokenizer", [True])
async def test_what_local_refuses_the_engine_is_asked_for(make_source):
    async with FakeWorker({"POST /tokenize": (200, b'{"tokens":[1,2,3,4]}')}) as worker:
        host = StubHost(targets=(TokenizeTarget("w", worker.url, "vllm"),))
        source = make_source("auto", host)
        assert (await prompt_of(source, REFUSED, CHAT)).unit is Unit.TOKENS
        host.targets = ()
        assert (await prompt_of(source, REFUSED, CHAT)).unit is Unit.BYTES
        assert host.fallbacks == {"template": 1}


@pytest.mark.parametrize("has_tokenizer", [True, False])
async def test_it_offers_probes_where_local_does(has_tokenizer, make_source):
    source = make_source("auto", StubHost())
    assert isinstance(source, ProbeTokens)
    assert bool(source.tokens_of_probe("m")) == has_tokenizer
