"""Tokens from engines: asked once, kept by content, shared, bounded, never the cause of a failure."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from indexer.blocks import HashSpace, Unit, chain_block_hashes, pack_tokens, root_seed
from router.core.catalogue import Resolution
from router.tokens import engine as engine_module
from router.tokens.base import TokenizeTarget
from router.tokens.engine import EngineTokens
from router.tokens.limits import TOKENIZE_CALLS_PER_WORKER
from router.wire.endpoints import lookup
from tests.support.fake_worker import FakeWorker
from tests.support.token_host import CHAT, SPACE, StubHost, prompt_of
from tests.support.waiting import eventually

RECORDED = Path(__file__).parents[3] / "fixtures" / "http" / "vllm-0.32.0"
TEXT = b'{"prompt": "a text of some length for the bytes"}'


def tokens(num=9, start=0):
    return 200, msgspec.json.encode(
        {"count": num, "max_model_len": 1, "tokens": list(range(start, start + num))}
    )


def target(worker, name="w0", engine="vllm", **fields):
    return TokenizeTarget(name, worker.url, engine, **fields)


@pytest.fixture
async def worker():
    async with FakeWorker({"POST /tokenize": tokens()}) as worker:
        yield worker


@pytest.fixture
def host(worker):
    return StubHost(targets=(target(worker),))


@pytest.fixture
def source(host, sessions):
    return EngineTokens(host, sessions)


async def test_a_recorded_chat(worker, source):
    recorded = (RECORDED / "tokenize_chat.json").read_bytes()
    worker.answers["POST /tokenize"] = (200, recorded)
    prompt = await prompt_of(source, b'{"model":"m","messages":[{"role":"user","content":"x"}]}', CHAT)
    ids = msgspec.json.decode(recorded)["tokens"]
    assert prompt.chains == {SPACE: chain_block_hashes(pack_tokens(ids), 16, root_seed("m"))}
    assert (prompt.num_tokens, prompt.unit, prompt.exact) == (161, Unit.TOKENS, True)


async def test_the_model_asked_for_is_the_one_that_was_resolved(worker, source):
    await prompt_of(source, b'{"prompt": "x"}', resolution=Resolution("adapter", "m", "adapter"))
    assert worker.bodies("/tokenize") == [b'{"model":"adapter","prompt":"x"}']


async def test_a_key_goes_along(worker, sessions):
    host = StubHost(targets=(target(worker, headers={"authorization": "Bearer k"}),))
    await prompt_of(EngineTokens(host, sessions), TEXT)
    assert worker.requests[0][2]["authorization"] == "Bearer k"


async def test_a_repeated_prompt_costs_neither_a_call_nor_hashing(worker, source, monkeypatch):
    first = await prompt_of(source, TEXT)
    monkeypatch.setattr(engine_module, "chain_hashes", None)
    second = await prompt_of(source, TEXT.replace(b"}", b',"max_tokens":7}'))
    assert second.chains[SPACE] is first.chains[SPACE]
    assert len(worker.requests) == 1


async def test_another_salt_is_hashed_anew_but_not_asked_for(worker, source):
    plain = await prompt_of(source, TEXT)
    salted = await prompt_of(source, TEXT.replace(b"}", b',"cache_salt":"s"}'))
    assert salted.chains[SPACE] != plain.chains[SPACE]
    assert len(worker.requests) == 1


async def test_spaces_that_come_later_are_added(worker, host, source):
    await prompt_of(source, TEXT)
    host.spaces = (SPACE, HashSpace("m", 2))
    prompt = await prompt_of(source, TEXT)
    assert {space: len(chain) for space, chain in prompt.chains.items()} == {SPACE: 2, HashSpace("m", 2): 4}
    assert len(worker.requests) == 1


async def test_equal_prompts_share_one_call(worker, source):
    release = asyncio.Event()

    async def answer(body):
        await release.wait()
        return tokens()

    worker.answers["POST /tokenize"] = answer
    callers = [asyncio.ensure_future(prompt_of(source, TEXT)) for _ in range(5)]
    await eventually(lambda: worker.requests)
    callers[0].cancel()
    release.set()
    prompts = await asyncio.gather(*callers[1:])
    assert [prompt.num_tokens for prompt in prompts] == [9] * 4
    assert len(worker.requests) == 1
    assert callers[0].cancelled()


async def test_a_call_that_nobody_waits_for_is_given_up_and_not_joined(worker, source):
    asked = asyncio.Event()

    async def hang(body):
        asked.set()
        await asyncio.Event().wait()

    worker.answers["POST /tokenize"] = hang
    callers = [asyncio.ensure_future(prompt_of(source, TEXT)) for _ in range(2)]
    await asked.wait()
    for caller in callers:
        caller.cancel()
    worker.answers["POST /tokenize"] = tokens()
    await asyncio.sleep(0)
    assert (await prompt_of(source, TEXT)).unit is Unit.TOKENS
    assert [caller.cancelled() for caller in callers] == [True, True]


async def test_calls_to_one_worker_are_bounded_and_spread(worker, host, source):
    release = asyncio.Event()
    counts = {"now": 0, "most": 0}

    async def answer(body):
        counts["now"] += 1
        counts["most"] = max(counts["most"], counts["now"])
        await release.wait()
        counts["now"] -= 1
        return tokens()

    worker.answers["POST /tokenize"] = answer
    async with FakeWorker({"POST /tokenize": answer}) as other:
        host.targets = (target(worker, "w0"), target(other, "w1"))
        num_callers = 4 * TOKENIZE_CALLS_PER_WORKER
        callers = [
            asyncio.ensure_future(prompt_of(source, b'{"prompt": "number %d"}' % i))
            for i in range(num_callers)
        ]
        await eventually(lambda: counts["now"] == 2 * TOKENIZE_CALLS_PER_WORKER)
        release.set()
        await asyncio.gather(*callers)
        assert counts["most"] == 2 * TOKENIZE_CALLS_PER_WORKER
        assert len(worker.requests) == len(other.requests) == num_callers / 2
    assert host.fallbacks == {}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((400, b'{"error":{}}'), "refused"),
        ((404, b""), "refused"),
        ((500, b""), "refused"),
        ((200, b""), "rubbish"),
        ((200, b"[]"), "rubbish"),
        ((200, b'{"tokens":null}'), "rubbish"),
        ((200, b'{"tokens":["a"]}'), "rubbish"),
        ((200, b'{"tokens":[[1,2]]}'), "rubbish"),
        ((200, b'{"tokens":' + b"[" * 100_000), "rubbish"),
        ((200, b'{"tokens":[' + b"1," * 2_000_000 + b"1]}"), "unreachable"),
    ],
)
async def test_a_failure_becomes_bytes_and_is_counted(answer, reason, worker, host, source):
    worker.answers["POST /tokenize"] = answer
    prompt = await prompt_of(source, TEXT)
    assert (prompt.unit, prompt.exact) == (Unit.BYTES, False)
    assert host.fallbacks == {reason: 1}


async def test_a_failure_is_not_remembered(worker, host, source):
    worker.answers["POST /tokenize"] = (503, b"")
    await prompt_of(source, TEXT)
    worker.answers["POST /tokenize"] = tokens()
    assert (await prompt_of(source, TEXT)).unit is Unit.TOKENS


async def test_one_failure_is_told_to_all_who_wait(worker, host, source):
    worker.answers["POST /tokenize"] = (503, b"")
    prompts = await asyncio.gather(*(prompt_of(source, TEXT) for _ in range(3)))
    assert [prompt.unit for prompt in prompts] == [Unit.BYTES] * 3
    assert (host.fallbacks, len(worker.requests)) == ({"refused": 3}, 1)


async def test_a_worker_that_hangs_is_given_up(worker, host, sessions):
    release = asyncio.Event()

    async def answer(body):
        await release.wait()
        return tokens()

    worker.answers["POST /tokenize"] = answer
    source = EngineTokens(host, sessions, timeout_seconds=0.05)
    texts = [b'{"prompt": "number %d"}' % i for i in range(2 * TOKENIZE_CALLS_PER_WORKER)]
    prompts = await asyncio.gather(*(prompt_of(source, text) for text in texts))
    release.set()
    assert {prompt.unit for prompt in prompts} == {Unit.BYTES}
    assert host.fallbacks == {"timeout": len(texts)}


async def test_a_worker_that_is_down(host, source, unused_tcp_port):
    host.targets = (TokenizeTarget("w", f"http://127.0.0.1:{unused_tcp_port}", "vllm"),)
    assert (await prompt_of(source, TEXT)).unit is Unit.BYTES
    assert host.fallbacks == {"unreachable": 1}


async def test_without_a_worker(host, source):
    host.targets = ()
    assert (await prompt_of(source, TEXT)).unit is Unit.BYTES
    assert host.fallbacks == {"no_worker": 1}


@pytest.mark.parametrize(
    "part", [b'{"type":"image_url","image_url":{"url":"u"}}', b'{"type":"input_audio","input_audio":{}}']
)
async def test_media_are_not_asked_for(part, worker, host, source):
    body = (
        b'{"messages":[{"role":"user","content":[{"type":"text","text":"what is it, then?"},' + part + b"]}]}"
    )
    assert (await prompt_of(source, body, CHAT)).unit is Unit.BYTES
    assert (host.fallbacks, worker.requests) == ({"media": 1}, [])


async def test_media_of_sglangs_own_api_are_not_asked_for(worker, host, source):
    host.targets = (target(worker, engine="sglang"),)
    prompt = await prompt_of(
        source, b'{"text": "<image> what is it?", "image_data": "u"}', lookup("/generate")
    )
    assert (prompt.unit, host.fallbacks) == (Unit.BYTES, {"media": 1})


async def test_a_text_that_speaks_of_media_is_asked_for(worker, source):
    body = msgspec.json.encode({"messages": [{"role": "user", "content": 'what is {"type":"image_url"}?'}]})
    assert (await prompt_of(source, body, CHAT)).unit is Unit.TOKENS


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
async def test_protocols_that_engines_do_not_tokenize_are_bytes_by_design(path, worker, host, source):
    body = b'{"input": "hello", "messages": [{"role": "user", "content": "hello"}]}'
    prompt = await prompt_of(source, body, lookup(path))
    assert (prompt.unit, prompt.exact) == (Unit.BYTES, False)
    assert (host.fallbacks, worker.requests) == ({}, [])


@pytest.mark.parametrize("body", [b'{"prompt": []}', b'{"prompt_embeds": "AA"}'])
async def test_what_holds_no_text_is_not_asked_for(body, worker, host, source):
    assert await prompt_of(source, body) is None
    assert (host.fallbacks, worker.requests) == ({}, [])


async def test_an_engine_that_cannot_be_asked_for_it(host, source):
    assert (await prompt_of(source, b'{"text": "hello"}', lookup("/generate"))).unit is Unit.BYTES
    assert host.fallbacks == {"unsupported": 1}


async def test_sglangs_own_api(worker, host, source):
    host.targets = (target(worker, engine="sglang"),)
    prompt = await prompt_of(source, b'{"text": ["hello", "hello again"]}', lookup("/generate"))
    assert worker.bodies("/tokenize") == [b'{"model":"m","prompt":"hello"}']
    assert (prompt.unit, prompt.exact) == (Unit.TOKENS, False)


@pytest.mark.parametrize(
    ("body", "num_tokens", "exact"),
    [
        (b'{"prompt": "aaaaaaaa", "n": 2}', 9, False),
        (b'{"prompt": ["aaaaaaaa"]}', 9, True),
        (b'{"prompt": ["aaaaaaaa", "aaaaaaaa", "aaaaaaaa"]}', 27, False),
        (b'{"prompt": "aaaaaaaa", "truncate_prompt_tokens": 4}', 9, False),
    ],
)
async def test_what_can_be_foretold(body, num_tokens, exact, source):
    prompt = await prompt_of(source, body)
    assert (prompt.num_tokens, prompt.exact) == (num_tokens, exact)


async def test_a_very_long_prompt(worker, source):
    worker.answers["POST /tokenize"] = tokens(200_000)
    prompt = await prompt_of(source, b'{"prompt": "' + b"long " * 200_000 + b'"}')
    expected = chain_block_hashes(pack_tokens(range(200_000)), 16, root_seed("m"))
    assert prompt.chains[SPACE] == expected
