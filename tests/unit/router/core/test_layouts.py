"""A worker's blocks are others than it told: its events' word counts, nothing is lost or invented."""

from __future__ import annotations

import msgspec
import pytest

from indexer.blocks import TOKEN_BYTES, HashSpace, Unit, chain_block_hashes, pack_tokens, root_seed
from indexer.trust import TrustLevel
from router.core.outcome import Outcome
from router.core.prompt import Prompt
from tests.support.columns import MODEL
from tests.support.fleets import Engine, make_core, prompt_of, publishing, request, silent
from tests.support.sglang_events import cleared, pairs, stored

SIZES = (16, 32)
TOKENS = list(range(1000, 1256))


def route(core, request_id, tokens=TOKENS, *, unit=Unit.TOKENS, now=0.0):
    prompt = prompt_of(tokens, block_sizes=SIZES, unit=unit)
    return core.route(request(request_id), prompt, now=now)


@pytest.fixture(params=[16, None], ids=["told wrongly", "not told"])
def core(request):
    return make_core([publishing("a", block_tokens=request.param)])


def test_its_index_stays_when_it_is_matched_by_the_blocks_that_it_stores(core):
    engine = Engine(core, "a", block_tokens=32)
    engine.store(TOKENS)
    assert core.worker("a").trust.level is TrustLevel.DEGRADED
    assert core.adopt_layout("a") == HashSpace(MODEL, 16)
    view = core.worker("a")
    assert (view.space, view.num_index_blocks) == (HashSpace(MODEL, 32), 8)
    assert view.trust.level is TrustLevel.EXACT
    assert core.hash_spaces(MODEL) == [HashSpace(MODEL, 32)]
    assert route(core, "r").expected_cached_tokens == 224  # one block is always computed
    core.check()


def test_before_its_first_event_and_for_strangers_nothing_changes(core):
    Engine(core, "a")
    assert core.adopt_layout("a") is None
    assert core.adopt_layout("b") is None
    assert core.worker("a").space == HashSpace(MODEL, 16)


def test_it_changes_once(core):
    Engine(core, "a", block_tokens=32).store(TOKENS)
    assert core.adopt_layout("a") is not None
    assert core.adopt_layout("a") is None


@pytest.mark.parametrize("unit", Unit)
def test_what_was_booked_before_ends_as_it_should(core, unit):
    """256 tokens are 16 blocks of 16: as 8 of 32 each counts until it is freed, shared with nobody."""
    engine = Engine(core, "a", block_tokens=32)
    for request_id in "rs":
        route(core, request_id, unit=unit)
    core.first_token("r", now=0.0)
    engine.store(TOKENS)
    core.adopt_layout("a")
    core.check()
    assert core.worker("a").active_decode_blocks == 8 + 8
    assert core.observe_usage("r", prompt_tokens=256, cached_tokens=0, now=1.0) is None
    core.first_token("s", now=1.0)
    core.finish("r", Outcome.DONE, now=2.0)
    core.finish("s", Outcome.WORKER_FAILED, now=2.0)
    core.check()
    view = core.worker("a")
    assert (view.active_decode_blocks, view.active_prefill_tokens, view.num_active_requests) == (0, 0, 0)
    assert view.num_index_blocks == 8


def test_what_was_predicted_in_blocks_of_another_size_is_forgotten(core):
    engine = Engine(core, "a", block_tokens=32)
    route(core, "r")
    core.first_token("r", now=0.0)
    assert core.worker("a").num_predicted_blocks == 16
    engine.store(TOKENS[:32])
    core.adopt_layout("a")
    assert core.worker("a").num_predicted_blocks == 0
    assert route(core, "s", now=1.0).expected_cached_tokens == 32


def test_workers_of_two_sizes_are_compared_by_what_each_holds():
    core = make_core([publishing("a"), publishing("b"), silent("c")])
    fine, coarse = Engine(core, "a", block_tokens=16), Engine(core, "b", block_tokens=32)
    fine.store(TOKENS[:48])
    coarse.store(TOKENS[:96])
    core.adopt_layout("a")
    core.adopt_layout("b")
    decision = route(core, "r")
    assert decision.worker.id == "b"
    assert decision.candidates.block_tokens == 16
    assert list(decision.candidates.device_overlap) == [3.0, 6.0, 0.0]


def test_blocks_that_depend_on_what_follows_them_are_matched_as_such():
    """Under EAGLE a page of SGLang's tree holds token pairs, and so one token more than it is long."""
    core = make_core([publishing("a", engine="sglang")])
    slot = core.slot_of("a")
    core.feed.connected(slot)
    events = [cleared(), stored(range(1, 16), pairs(TOKENS)[:240], page_size=16)]
    core.feed.receive(slot, 0, msgspec.msgpack.encode([0.0, events, 0]))
    assert core.worker("a").trust.level is TrustLevel.DEGRADED
    assert core.adopt_layout("a") == HashSpace(MODEL, 16)
    (space,) = core.hash_spaces(MODEL)
    assert space == HashSpace(MODEL, 16, 1)
    chain = chain_block_hashes(pack_tokens(TOKENS), 16 * TOKEN_BYTES, root_seed(MODEL), (), TOKEN_BYTES)
    prompt = Prompt(len(TOKENS), Unit.TOKENS, {space: chain}, exact=True)
    decision = core.route(request("r"), prompt, now=0.0)
    assert (decision.trust, decision.details["exact_blocks"]) == ("exact", 15)
