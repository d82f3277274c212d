"""What every token source must do, whatever the body holds and whatever the fleet is like."""

import pytest

from indexer.blocks import Unit, chain_block_hashes, pack_tokens, root_seed
from router.engines.sessions import WorkerSessions
from router.tokens import SOURCES, LocalModels
from router.tokens.base import TokenizeTarget
from router.wire.endpoints import ENDPOINTS
from tests.support.certificates import system_trust
from tests.support.token_host import CHAT, SPACE, StubHost, prompt_of
from tests.support.tokenizers import TINY

BODIES = [
    b'{"prompt": "x", "messages": [], "input": "x", "text": "x"}',
    b'{"prompt": [1, 2, 3, 4], "messages": [{"content": null}], "input": [], "input_ids": [[1]]}',
    b'{"prompt": [], "messages": [null], "input": null, "text": null}',
    b'{"prompt": ["", 5], "messages": [[]], "input": 5, "text": 5, "input_ids": "x"}',
    b'{"prompt": [[]], "messages": [{}], "input": {}, "input_ids": [], "system": 5}',
    b'{"prompt": "", "messages": [], "x": NaN}',
    b'{"prompt": "x", "messages": [], "text": 5}',
    b'{"prompt": "\\u0000", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]}',
]


@pytest.fixture(params=SOURCES)
async def sourced(request, unused_tcp_port):
    """A source and its host, whose only worker is down."""
    host = StubHost(targets=(TokenizeTarget("w", f"http://127.0.0.1:{unused_tcp_port}", "vllm"),))
    models = LocalModels([str(TINY)])
    models.load_named()
    async with WorkerSessions(system_trust()) as sessions:
        yield SOURCES[request.param](host, sessions, models), host
    models.close()


@pytest.mark.parametrize("body", BODIES)
async def test_no_body_makes_it_fail(body, sourced):
    source, _ = sourced
    for endpoint in ENDPOINTS.values():
        prompt = await prompt_of(source, body, endpoint)
        assert prompt is None or set(prompt.chains) == {SPACE}


async def test_token_ids_are_used_as_they_are(sourced):
    source, host = sourced
    prompt = await prompt_of(source, b'{"prompt": [5, 6, 7, 8]}')
    assert prompt.chains == {SPACE: chain_block_hashes(pack_tokens([5, 6, 7, 8]), 16, root_seed("m"))}
    assert (prompt.unit, prompt.exact, host.fallbacks) == (Unit.TOKENS, True, {})


async def test_equal_prompts_have_equal_blocks_and_longer_ones_begin_with_them(sourced):
    source, _ = sourced
    chains = []
    question = " ".join(map(str, range(100)))
    for contents in ([question], [question], [question, "more"]):
        messages = ",".join(f'{{"role":"user","content":"{content}"}}' for content in contents)
        chains.append((await prompt_of(source, f'{{"messages":[{messages}]}}'.encode(), CHAT)).chains[SPACE])
    num_shared = len(chains[0]) - 4  # a template ends with what asks for an answer
    assert num_shared >= 3
    assert chains[0] == chains[1]
    assert chains[0][:num_shared] == chains[2][:num_shared]


async def test_without_workers_there_are_no_spaces_and_no_harm(sourced):
    source, host = sourced
    host.spaces = host.targets = ()
    assert (await prompt_of(source, b'{"prompt": "some text"}')).chains == {}
