"""Requests and events are hashed alike, whichever hash is chosen: from the option's value to the choice."""

from __future__ import annotations

import pytest

from indexer.blocks import HASHINGS, TOKEN_BYTES, pack_tokens
from router.core.prompt import Prompt, Unit
from router.tokens.hashing import Pace, chain_hashes
from tests.support.columns import MODEL
from tests.support.fleets import Engine, make_core, publishing, request, silent

TOKENS = list(range(70))


async def prompt_for(core, *, adapter="", salt=""):
    """As the token sources make it."""
    packed = pack_tokens(TOKENS)
    roots = [
        (space, HASHINGS[space.hashing].root(space.base_model, adapter=adapter, cache_salt=salt))
        for space in core.hash_spaces(MODEL)
    ]
    return Prompt(len(TOKENS), Unit.TOKENS, await chain_hashes(packed, roots, Pace()), exact=True)


@pytest.mark.parametrize("hashing", HASHINGS)
async def test_what_events_tell_is_found_again(hashing):
    core = make_core([publishing("a"), publishing("b"), silent("c")], hashing=hashing)
    assert {space.hashing for space in core.hash_spaces(MODEL)} == {hashing}
    Engine(core, "a").store(TOKENS[:32])
    Engine(core, "b").store(TOKENS[:48])
    decision = core.route(request("1"), await prompt_for(core), now=1.0)
    assert decision.worker.id == "b"
    core.check()
    other = core.preview(request("2"), await prompt_for(core, salt="tenant"), now=1.0)
    assert not any(other.candidates.device_overlap)


@pytest.mark.parametrize("hashing", HASHINGS)
async def test_predictions_use_the_same_hash(hashing):
    core = make_core([silent("a"), silent("b")], hashing=hashing)
    first = core.route(request("1"), await prompt_for(core), now=1.0)
    core.first_token("1", now=1.1)
    again = core.route(request("2"), await prompt_for(core), now=1.2)
    assert again.worker.id == first.worker.id
    core.check()


def test_hashes_are_64_bits_wide_where_the_other_router_has_them():
    packed = pack_tokens(range(16 * 64))
    hashes = HASHINGS["dynamo"].chain(packed, 16 * TOKEN_BYTES, HASHINGS["dynamo"].root("m"))
    assert max(hashes) >> 60
