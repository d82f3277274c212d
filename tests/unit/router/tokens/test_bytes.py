"""Prompts of bytes."""

import pytest

from indexer.blocks import HashSpace, Unit, chain_block_hashes, root_seed
from router.tokens.bytes import BytesTokens
from router.wire.endpoints import lookup
from tests.support.token_host import CHAT, SPACE, StubHost, prompt_of


async def test_a_text_is_cut_at_four_bytes_a_token():
    text = "h\u00e9llo wörld, how are you today?" * 2
    prompt = await prompt_of(BytesTokens(StubHost()), f'{{"prompt": "{text}"}}'.encode())
    packed = text.encode()
    assert prompt.chains == {SPACE: chain_block_hashes(packed, 16, root_seed("m", unit=Unit.BYTES))}
    assert (prompt.num_tokens, prompt.unit, prompt.exact) == (-(-len(packed) // 4), Unit.BYTES, False)


async def test_a_text_is_the_same_however_its_json_escapes_it():
    source = BytesTokens(StubHost())
    plain, escaped = "naïve café, twice as long", "na\\u00efve caf\\u00e9, twice\\u0020as long"
    prompts = [await prompt_of(source, f'{{"prompt": "{text}"}}'.encode()) for text in (plain, escaped)]
    assert prompts[0] == prompts[1]
    assert len(prompts[0].chains[SPACE]) == 1


async def test_bytes_and_tokens_never_meet():
    source = BytesTokens(StubHost())
    text = await prompt_of(source, b'{"prompt": "' + b"a" * 16 + b'"}')
    ids = await prompt_of(source, b'{"prompt": [1633771873,1633771873,1633771873,1633771873]}')
    assert text.chains[SPACE] != ids.chains[SPACE]


async def test_every_space_gets_its_chain():
    spaces = (HashSpace("m", 4), HashSpace("m", 8))
    prompt = await prompt_of(BytesTokens(StubHost(spaces=spaces)), b'{"prompt": "' + b"a" * 32 + b'"}')
    assert {space: len(chain) for space, chain in prompt.chains.items()} == {spaces[0]: 2, spaces[1]: 1}


async def test_of_a_batch_the_first_counts_and_all_are_long():
    prompt = await prompt_of(
        BytesTokens(StubHost()), b'{"prompt": ["' + b"a" * 16 + b'", "' + b"b" * 400 + b'"]}'
    )
    alone = await prompt_of(BytesTokens(StubHost()), b'{"prompt": "' + b"a" * 16 + b'"}')
    assert prompt.chains == alone.chains
    assert prompt.num_tokens == pytest.approx(104, abs=1)


async def test_a_chats_next_turn_shares_its_blocks():
    def body(turns):
        messages = b",".join(b'{"role":"user","content":"turn %d %s"}' % (i, b"x" * 40) for i in range(turns))
        return b'{"messages":[' + messages + b"]}"

    first = (await prompt_of(BytesTokens(StubHost()), body(2), CHAT)).chains[SPACE]
    second = (await prompt_of(BytesTokens(StubHost()), body(3), CHAT)).chains[SPACE]
    assert second[: len(first)] == first
    assert len(second) > len(first) > 4


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", b'{"prompt": ""}'),
        ("/v1/completions", b'{"prompt": []}'),
        ("/v1/completions", b'{"prompt_embeds": "AA"}'),
        ("/v1/chat/completions", b'{"messages": []}'),
        ("/v1/chat/completions", b'{"messages": [], "x": NaN}'),
        ("/v1/responses", b"{}"),
        ("/v1/embeddings", b'{"input": "x"}'),
    ],
)
async def test_without_text_there_is_no_prompt(path, body):
    assert await prompt_of(BytesTokens(StubHost()), body, lookup(path)) is None
