"""Batches and token ids within a body."""

import pytest

from indexer.blocks import Unit, chain_block_hashes, pack_tokens, root_seed
from router.core.catalogue import Resolution
from router.tokens.hashing import Pace
from router.tokens.limits import JSON_PIECE_BYTES
from router.tokens.prompts import NotTokenIds, batch_of, pack_json_ids
from router.wire.endpoints import lookup
from router.wire.openai import parse_body
from tests.support.token_host import SPACE, StubHost, prompt_of


@pytest.mark.parametrize(
    ("prompt", "first", "num_others", "are_ids"),
    [
        (b'"a"', b'"a"', 0, False),
        (b'["a", "b","c"]', b'"a"', 2, False),
        (b"[1, 2]", b"[1, 2]", 0, True),
        (b"[ 1 ]", b"[ 1 ]", 0, True),
        (b"[[1, 2], [3]]", b"[1, 2]", 1, True),
        (b"[\n [1]]", b"[1]", 0, True),
    ],
)
def test_batches(prompt, first, num_others, are_ids):
    batch = batch_of(parse_body(b'{"prompt":' + prompt + b"}", lookup("/v1/completions")).prompt)
    assert (batch.first, len(batch.others), batch.are_ids) == (first, num_others, are_ids)


@pytest.mark.parametrize("body", [b'{"prompt": []}', b'{"prompt": [ ]}', b'{"prompt_embeds": "AAAA"}'])
def test_no_batch(body):
    assert batch_of(parse_body(body, lookup("/v1/completions")).prompt) is None


@pytest.mark.parametrize("num_ids", [0, 1, 5000, 50_000])
@pytest.mark.parametrize("separator", [",", " , \n"])
async def test_ids_are_packed_in_pieces(num_ids, separator):
    ids = [i * 7919 % 2**32 for i in range(num_ids)]
    text = f"[{separator.join(map(str, ids))}]".encode()
    assert num_ids < 50_000 or len(text) > 3 * JSON_PIECE_BYTES
    assert await pack_json_ids(text, Pace()) == pack_tokens(ids)


@pytest.mark.parametrize(
    "text", [b"[-1]", b"[4294967296]", b"[1.5]", b"[true]", b"[null]", b'[1,"a"]', b"[[1]]", b"[1,", b'"a"']
)
async def test_what_is_no_list_of_ids_is_refused(text):
    with pytest.raises(NotTokenIds):
        await pack_json_ids(text, Pace())


async def test_a_piece_that_is_no_list_of_ids_is_refused_too():
    with pytest.raises(NotTokenIds):
        await pack_json_ids(b"[" + b"1," * JSON_PIECE_BYTES + b'"a"]', Pace())


@pytest.mark.parametrize("name", ["bytes", "engine"])
async def test_ids_of_a_client_are_used_as_they_are(name, make_source):
    prompt = await prompt_of(
        make_source(name, StubHost()), b'{"prompt":[1,2,3,4,5,6,7,8,9],"cache_salt":"s"}'
    )
    seed = root_seed("m", cache_salt="s")
    assert prompt.chains == {SPACE: chain_block_hashes(pack_tokens(range(1, 10)), 16, seed)}
    assert (prompt.num_tokens, prompt.unit, prompt.exact) == (9, Unit.TOKENS, True)


async def test_an_adapter_has_blocks_of_its_own(make_source):
    source = make_source("bytes", StubHost())
    plain = await prompt_of(source, b'{"prompt":[1,2,3,4]}')
    adapted = await prompt_of(source, b'{"prompt":[1,2,3,4]}', resolution=Resolution("a", "m", "a"))
    assert plain.chains[SPACE] != adapted.chains[SPACE]
    assert adapted.chains[SPACE] == chain_block_hashes(
        pack_tokens(range(1, 5)), 16, root_seed("m", adapter="a")
    )


@pytest.mark.parametrize(
    ("fields", "num_tokens"),
    [
        (b'"prompt":[[1,2,3,4],[5,6]]', 6),
        (b'"prompt":[1,2,3,4],"n":2', 4),
        (b'"prompt":[1,2,3,4],"truncate_prompt_tokens":2', 4),
        (b'"prompt":[1,2,3,4],"prompt_embeds":"AA"', 4),
    ],
)
async def test_what_cannot_be_foretold_is_not_exact(fields, num_tokens, make_source):
    prompt = await prompt_of(make_source("bytes", StubHost()), b"{" + fields + b"}")
    assert (prompt.num_tokens, prompt.exact) == (num_tokens, False)
    assert len(prompt.chains[SPACE]) == 1


@pytest.mark.parametrize("prompt", [b'[1,"a"]', b"[null]", b"[[[1]]]", b"[{}]"])
async def test_odd_lists_are_routed_without_a_prefix(prompt, make_source):
    assert await prompt_of(make_source("bytes", StubHost()), b'{"prompt":' + prompt + b"}") is None
