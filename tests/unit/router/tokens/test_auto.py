"""Local tokens before the engine's before bytes, once a worker agrees with them, and no trouble for
nothing."""

import msgspec
import pytest

from indexer.blocks import Unit
from router.tokens import LocalModels
from router.tokens.base import TokenizeTarget
from router.tokens.probe import ProbeTokens
from tests.support.fake_worker import FakeWorker
from tests.support.token_host import CHAT, StubHost, prompt_of
from tests.support.tokenizers import TINY, encoder
from tests.support.waiting import eventually

TEXT = b'{"prompt": "some text"}'
REFUSED = b'{"messages": [{"role": "user", "content": "x"}], "chat_template": "{{ 1 }}"}'


@pytest.fixture
def models(has_tokenizer):
    models = LocalModels([str(TINY)] if has_tokenizer else [])
    models.load_named()
    yield models
    models.close()


def tokenized(body):
    """What an engine with the tiny tokenizer answers, and with a template of its own for chats."""
    asked = msgspec.json.decode(body)
    if "prompt" in asked:
        return 200, msgspec.json.encode({"tokens": encoder("tiny").encode_whole(asked["prompt"])})
    turns = (f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in asked["messages"])
    text = "".join(turns) + "<|im_start|>assistant\n"
    return 200, msgspec.json.encode({"tokens": encoder("tiny").encode_whole(text)})


@pytest.fixture
async def worker():
    async with FakeWorker({"POST /tokenize": tokenized}) as worker:
        yield worker


@pytest.fixture
def host(worker):
    return StubHost(targets=(TokenizeTarget("w", worker.url, "vllm"),))


async def ask(source, worker):
    """The prompt of TEXT, and how often the worker was asked for it."""
    before = len(worker.bodies("/tokenize"))
    prompt = await prompt_of(source, TEXT)
    asked = worker.bodies("/tokenize")[before:]
    return prompt.unit, sum(b"some text" in body for body in asked)


@pytest.mark.parametrize(
    ("exact", "offered", "has_tokenizer", "unit", "num_asked"),
    [
        (True, True, False, Unit.TOKENS, 1),
        (True, False, True, Unit.TOKENS, 0),
        (True, False, False, Unit.BYTES, 0),
        (False, True, True, Unit.BYTES, 0),
    ],
)
async def test_the_source_that_serves(exact, offered, unit, num_asked, make_source, worker, host):
    host.exact = exact
    host.targets = host.targets if offered else ()
    assert await ask(make_source("auto", host), worker) == (unit, num_asked)
    assert host.fallbacks == {}


@pytest.mark.parametrize("has_tokenizer", [True])
async def test_local_tokens_serve_once_the_worker_has_agreed(make_source, worker, host, caplog):
    source = make_source("auto", host)
    assert await ask(source, worker) == (Unit.TOKENS, 1), "nobody waits for the comparison"
    await eventually(lambda: len(worker.requests) == 3)
    await eventually(lambda: not source._agreement._asking)
    assert await ask(source, worker) == (Unit.TOKENS, 0)
    assert len(worker.requests) == 3, "compared once"
    assert source.tokens_of_probe("m"), "whose tokens are used are worth comparing"
    assert not caplog.messages


@pytest.mark.parametrize("has_tokenizer", [True])
async def test_where_tokens_differ_the_worker_is_asked_and_it_is_said_once(make_source, worker, host, caplog):
    worker.answers["POST /tokenize"] = lambda body: (200, b'{"tokens": [3, 1, 2]}')
    source = make_source("auto", host)
    await prompt_of(source, TEXT)
    await eventually(lambda: caplog.messages)
    assert await ask(source, worker) == (Unit.TOKENS, 0), "from the cache of the engine's own"
    (message,) = caplog.messages
    assert message.startswith("m: tokens made here differ from those of worker w: the texts differ")
    assert message.endswith("; workers are asked for them instead")
    assert source.tokens_of_probe("m") is None, "nobody uses them"


@pytest.mark.parametrize("has_tokenizer", [True])
@pytest.mark.parametrize("trouble", [None, (503, b"{}")])
async def test_a_worker_that_does_not_answer_is_asked_again(trouble, make_source, worker, host):
    worker.answers["POST /tokenize"] = trouble
    source = make_source("auto", host)
    await prompt_of(source, TEXT)
    await eventually(lambda: not source._agreement._asking)
    worker.answers["POST /tokenize"] = tokenized
    await prompt_of(source, TEXT)
    await eventually(lambda: not source._agreement._asking)
    assert await ask(source, worker) == (Unit.TOKENS, 0)


@pytest.mark.parametrize("has_tokenizer", [True])
@pytest.mark.parametrize("answer", [(400, b"{}"), (200, b"rubbish")])
async def test_what_cannot_be_compared_is_believed(answer, make_source, worker, host):
    worker.answers["POST /tokenize"] = lambda body: answer
    source = make_source("auto", host)
    await prompt_of(source, TEXT)
    await eventually(lambda: not source._agreement._asking)
    assert await ask(source, worker) == (Unit.TOKENS, 0)


@pytest.mark.parametrize("has_tokenizer", [True])
async def test_what_local_refuses_the_engine_is_asked_for(make_source, host):
    source = make_source("auto", host)
    assert (await prompt_of(source, REFUSED, CHAT)).unit is Unit.TOKENS
    host.targets = ()
    assert (await prompt_of(source, REFUSED, CHAT)).unit is Unit.BYTES
    assert host.fallbacks == {"template": 1}


@pytest.mark.parametrize("has_tokenizer", [True, False])
async def test_it_offers_no_probes_before_a_worker_has_agreed(has_tokenizer, make_source):
    source = make_source("auto", StubHost())
    assert isinstance(source, ProbeTokens)
    assert source.tokens_of_probe("m") is None, "no worker has agreed yet"
