"""Tokens made here: equal to the engine's own, cached by segment, made off the loop when long."""

import asyncio
import threading

import msgspec
import pytest

from indexer.blocks import Unit, chain_block_hashes, pack_tokens, root_seed
from router.core.catalogue import Resolution
from router.tokens.base import ModelHints
from router.tokens.local import LocalModels, LocalTokens, source
from router.tokens.local.encoder import Encoding
from router.tokens.local.limits import ENCODER_THREADS, LOOP_BODY_BYTES, LOOP_CHARACTERS
from router.tokens.probe import PROBES, ProbeTokens
from router.wire.endpoints import Protocol, lookup
from tests.support.token_host import CHAT, SPACE, StubHost, prompt_of
from tests.support.tokenizers import TINY, encoder, rows
from tests.support.waiting import eventually

VLLM = {"m": ModelHints((), "vllm")}


@pytest.fixture
def models():
    models = LocalModels([str(TINY)])
    models.load_named()
    yield models
    models.close()


@pytest.fixture
def host():
    return StubHost(hints=VLLM)


@pytest.fixture
def tokens(host, models):
    return LocalTokens(host, models)


def chain_of(ids):
    return {SPACE: chain_block_hashes(pack_tokens(ids), 16, root_seed("m"))}


def chat(*contents, **fields):
    messages = [{"role": "user", "content": content} for content in contents]
    return msgspec.json.encode({"messages": messages} | fields)


@pytest.mark.parametrize("recording", ["vllm-0.32.0", "vllm-0.23.0"])
async def test_vllms_own_tokens_of_recorded_requests(recording, tokens, host):
    for row in rows(f"prompts/{recording}.jsonl"):
        ids = row["token_ids"]
        prompt = await prompt_of(tokens, msgspec.json.encode(row["body"]), lookup(row["path"]))
        is_batch = isinstance(row["body"].get("prompt"), list)
        first = ids[0] if is_batch else ids
        assert prompt.chains == chain_of(first), row["id"]
        assert (prompt.unit, prompt.exact) == (Unit.TOKENS, not is_batch)
        if not is_batch:
            assert prompt.num_tokens == len(ids)
    assert not host.fallbacks


async def test_a_name_that_looks_like_media_is_a_name(tokens):
    body = b'{"messages": [{"role": "user", "name": "image", "content": "x"}]}'
    assert (await prompt_of(tokens, body, CHAT)).unit is Unit.TOKENS


async def test_a_batch_counts_all_and_hashes_the_first(tokens):
    one = await prompt_of(tokens, b'{"prompt": "some words here"}')
    both = await prompt_of(tokens, b'{"prompt": ["some words here", "some words here"]}')
    assert both.chains == one.chains
    assert (both.num_tokens, both.exact) == (2 * one.num_tokens, False)


async def test_generate_is_a_text(tokens):
    prompt = await prompt_of(tokens, b'{"text": "some words here"}', lookup("/generate"))
    assert prompt == await prompt_of(tokens, b'{"prompt": "some words here"}')


@pytest.mark.parametrize(
    ("body", "endpoint", "reason"),
    [
        (chat([{"type": "image_url", "image_url": {"url": "x"}}]), CHAT, "media"),
        (chat("x", chat_template="{{ 1 }}"), CHAT, "template"),
        (chat("x", chat_template_kwargs={"chat_template": "x"}), CHAT, "template"),
        (chat("x", continue_final_message=True), CHAT, "template"),
        (chat(5), CHAT, "template"),
    ],
)
async def test_what_has_no_tokens_here_is_counted_and_routed_by_bytes(body, endpoint, reason, tokens, host):
    prompt = await prompt_of(tokens, body, endpoint)
    assert prompt is None or (prompt.unit, prompt.exact) == (Unit.BYTES, False)
    assert host.fallbacks == {reason: 1}


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
async def test_protocols_that_engines_turn_into_chats_are_bytes_by_design(path, tokens, host):
    prompt = await prompt_of(tokens, b'{"input": "x", "messages": [{"content": "x"}]}', lookup(path))
    assert (prompt.unit, host.fallbacks) == (Unit.BYTES, {})


async def test_a_model_without_a_tokenizer_is_said_once(caplog):
    host, models = StubHost(), LocalModels()
    tokens = LocalTokens(host, models)
    for _ in range(2):
        assert (await prompt_of(tokens, b'{"prompt": "some text"}')).unit is Unit.BYTES
    models.close()
    assert host.fallbacks == {"no_tokenizer": 2}
    assert caplog.messages == ["m: routed by bytes, no tokenizer of it is here: give --tokenizer"]


@pytest.mark.parametrize("special", [None, True, False])
async def test_special_tokens_around_a_text(special, models, tokens, monkeypatch):
    model = models.get("m")
    monkeypatch.setattr(model.encoder, "_prefix", pack_tokens([1]))
    plain = encoder("tiny").encode_whole("hello")
    body = {"prompt": "hello"} | ({} if special is None else {"add_special_tokens": special})
    prompt = await prompt_of(tokens, msgspec.json.encode(body))
    assert prompt.num_tokens == len(plain) + (special is not False)


# Off the loop

LONG = "word " * LOOP_CHARACTERS


async def test_long_texts_are_encoded_in_a_thread_and_short_ones_are_not(tokens, monkeypatch):
    threads = []
    fill = Encoding.fill
    monkeypatch.setattr(
        Encoding, "fill", lambda self: (threads.append(threading.current_thread()), fill(self))
    )
    long = await prompt_of(tokens, chat(LONG), CHAT)
    await prompt_of(tokens, chat(LONG, "short"), CHAT)
    first, second = (thread is threading.main_thread() for thread in threads)
    assert (first, second) == (False, True), "the next turn has little that is new"
    whole = encoder("tiny").encode_whole(f"<|im_start|>user\n{LONG}<|im_end|>\n<|im_start|>assistant\n")
    assert long.chains == chain_of(whole)


async def test_long_bodies_are_rendered_in_a_thread(tokens, models, monkeypatch):
    threads = []
    model = models.get("m")
    text = model.text
    monkeypatch.setattr(model, "text", lambda *a: (threads.append(threading.current_thread()), text(*a))[1])
    await prompt_of(tokens, chat("x" * LOOP_BODY_BYTES), CHAT)
    await prompt_of(tokens, chat("x"), CHAT)
    assert [thread is threading.main_thread() for thread in threads] == [False, True]


@pytest.fixture
def held(monkeypatch):
    """Threads encode nothing before this event is set; `num_started` of them have begun."""
    event = threading.Event()
    event.num_started = 0
    fill = Encoding.fill

    def wait(self):
        if self.num_missing_characters > LOOP_CHARACTERS:
            event.num_started += 1
            event.wait(10)
        fill(self)

    monkeypatch.setattr(Encoding, "fill", wait)
    yield event
    event.set()


async def test_equal_texts_that_wait_are_encoded_once_for_each_thread(tokens, held):
    callers = [asyncio.ensure_future(prompt_of(tokens, chat(LONG), CHAT)) for _ in range(8)]
    await eventually(lambda: held.num_started == ENCODER_THREADS)
    held.set()
    prompts = await asyncio.gather(*callers)
    assert held.num_started == ENCODER_THREADS
    assert all(prompt == prompts[0] for prompt in prompts)


async def test_a_caller_that_leaves_gives_up_its_place(tokens, held):
    leaver = asyncio.ensure_future(prompt_of(tokens, chat(LONG), CHAT))
    await eventually(lambda: held.num_started)
    leaver.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaver
    held.set()
    assert (await prompt_of(tokens, chat("other " + LONG), CHAT)).unit is Unit.TOKENS


async def test_too_many_that_wait_are_routed_by_bytes(tokens, host, held, monkeypatch):
    monkeypatch.setattr(source, "WAITING_PROMPTS", 1)
    callers = [
        asyncio.ensure_future(prompt_of(tokens, chat(f"{i} {LONG}"), CHAT))
        for i in range(ENCODER_THREADS + 2)
    ]
    await eventually(lambda: host.fallbacks)
    held.set()
    units = [prompt.unit for prompt in await asyncio.gather(*callers)]
    assert (units.count(Unit.BYTES), host.fallbacks) == (1, {"busy": 1})


async def test_what_would_take_too_long_is_not_begun(tokens, host, monkeypatch):
    monkeypatch.setattr(source, "LONGEST_BODY_BYTES", 1000)
    assert (await prompt_of(tokens, chat("x" * 1000), CHAT)).unit is Unit.BYTES
    assert host.fallbacks == {"too_long": 1}


async def test_nobody_waits_longer_than_for_an_engine(tokens, host, held, monkeypatch):
    monkeypatch.setattr(source, "TOKENIZE_SECONDS", 0.01)
    assert (await prompt_of(tokens, chat(LONG), CHAT)).unit is Unit.BYTES
    assert host.fallbacks == {"timeout": 1}


# Probes


@pytest.mark.parametrize("protocol", PROBES)
async def test_probes_are_what_a_request_would_be(protocol, tokens):
    assert isinstance(tokens, ProbeTokens)
    body = b"{" + b",".join(b'"%s":%s' % (k.encode(), bytes(v)) for k, v in PROBES[protocol].items()) + b"}"
    prompt = await prompt_of(tokens, body, CHAT if protocol is Protocol.CHAT else lookup("/v1/completions"))
    assert prompt.chains == chain_of(tokens.tokens_of_probe("m", protocol))


async def test_there_is_no_probe_without_a_tokenizer_or_a_template(host, models):
    empty = LocalModels()
    assert LocalTokens(host, empty).tokens_of_probe("m") is None
    empty.close()
    models.get("m")._templates.clear()
    tokens = LocalTokens(host, models)
    assert tokens.tokens_of_probe("m") is None
    assert tokens.tokens_of_probe("m", Protocol.COMPLETIONS)


async def test_an_adapter_has_its_base_models_tokens(tokens):
    body = b'{"prompt": "some words that fill a block or two"}'
    prompt = await prompt_of(tokens, body, resolution=Resolution("adapter", "m", "adapter"))
    assert prompt.unit is Unit.TOKENS
    assert prompt.chains != (await prompt_of(tokens, body)).chains, "but other blocks"
