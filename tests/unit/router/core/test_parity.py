"""Following prompts to the blocks that they leave: when something follows, when nothing does, and at what
cost."""

from __future__ import annotations

import pytest

from indexer.events import AllBlocksCleared, BlockStored
from indexer.parity import Check, Outcome
from indexer.trust import TrustLevel, Verdict
from policies.types import ServedModel
from router.core.counters import CacheTotals
from router.core.health import HealthSign
from router.core.limits import PARITY_PATIENCE_SECONDS, PARITY_SAMPLE_SECONDS
from router.core.outcome import Outcome as End
from tests.support.columns import MODEL
from tests.support.fleets import BLOCK, Engine, chain_of, make_core, prompt_of, publishing, request

LATE = PARITY_PATIENCE_SECONDS


class Room:
    """One worker whose events are sound, and requests to it one after another."""

    def __init__(self, **fields) -> None:
        fields.setdefault("num_blocks", 1000)
        self.core = make_core([publishing("w", version="0.32.0", **fields)])
        self.engine = Engine(self.core, "w")
        self.now = 0.0
        self._num_requests = 0

    def serve(self, tokens, *, stores=None, cached=None, end=End.DONE, model=MODEL, salt="", usage=True):
        """One request from dispatch to its end; `stores` are the tokens whose blocks the engine announces."""
        self._num_requests += 1
        name = f"r{self._num_requests}"
        prompt = prompt_of(tokens)
        prompt.cache_salt = salt
        decision = self.core.route(request(name, model), prompt, now=self.now)
        if stores is not None:
            self.engine.store(stores)
        if end is End.DONE:
            self.core.first_token(name, now=self.now)
        if usage:
            self.core.observe_usage(name, prompt_tokens=len(tokens), cached_tokens=cached, now=self.now)
        self.core.finish(name, end, now=self.now)
        self.core.expire(now=self.now)
        return decision

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.core.expire(now=self.now)

    def counts(self, check: Check = Check.BLOCKS) -> dict[str, int]:
        counts = self.core.parity("w").counts
        return {outcome.value: count for (of, outcome), count in counts.items() if of is check and count}

    @property
    def trust(self) -> TrustLevel:
        return self.core.worker("w").trust.level


def tokens(name: int, num_blocks: int = 4) -> list[int]:
    return [name * 1000 + i for i in range(num_blocks * BLOCK)]


def degraded_room() -> Room:
    room = Room()
    for name in range(3):
        room.serve(tokens(name), stores=tokens(100 + name), cached=0)
        room.wait(LATE)
    assert room.trust is TrustLevel.DEGRADED
    return room


def test_blocks_that_come_agree_at_once() -> None:
    room = Room()
    room.serve(tokens(1), stores=tokens(1), cached=0)
    assert room.counts() == {"agree": 1}


def test_blocks_that_come_late_agree_too() -> None:
    room = Room()
    room.serve(tokens(1), cached=0)
    room.wait(LATE / 2)
    assert room.counts() == {}
    room.engine.store(tokens(1))
    room.wait(0.01)
    assert room.counts() == {"agree": 1}


def test_other_blocks_differ_once_patience_is_over() -> None:
    room = Room()
    room.serve(tokens(1), stores=tokens(2), cached=0)
    room.wait(LATE / 2)
    assert room.counts() == {}
    assert room.core.expire(now=room.now) == pytest.approx(LATE, abs=1.1), "it asks to be called again"
    room.wait(LATE)
    assert room.counts() == {"differ": 1}


def test_a_request_that_is_still_answered_is_waited_for() -> None:
    room = Room()
    room.core.route(request("r"), prompt_of(tokens(1)), now=0.0)
    room.core.first_token("r", now=0.0)
    room.engine.store(tokens(2))
    room.wait(10 * LATE)
    assert room.counts() == {}
    room.core.finish("r", End.DONE, now=room.now)
    room.wait(LATE)
    assert room.counts() == {"differ": 1}


def test_only_what_the_engine_did_not_have_is_awaited() -> None:
    room = Room()
    room.serve(tokens(1, 2), stores=tokens(1, 2), cached=0)
    longer = tokens(1, 2) + tokens(5, 2)
    room.serve(longer, cached=4 * BLOCK)
    room.wait(LATE)
    assert room.counts() == {"agree": 1, "skipped": 1}, "all of it was cached by the engine's word"


@pytest.mark.parametrize("end", [End.WORKER_FAILED, End.CLIENT_GONE, End.REJECTED])
def test_a_prompt_that_was_not_computed_says_nothing(end: End) -> None:
    room = Room()
    room.serve(tokens(1), end=end, usage=False)
    room.wait(LATE)
    assert room.counts() == {}


def test_a_gap_or_a_clear_meanwhile_leaves_it_open() -> None:
    room = Room()
    room.serve(tokens(1), cached=0)
    room.engine.publish([AllBlocksCleared()])
    room.wait(LATE)
    assert room.counts() == {"skipped": 1}


def test_few_evictions_excuse_nothing_and_half_the_cache_does() -> None:
    for num_blocks, verdict in ((1000, "differ"), (6, "skipped")):
        room = Room(num_blocks=num_blocks)
        room.engine.store(tokens(9))
        room.serve(tokens(1), stores=tokens(2), cached=0)
        room.engine.remove(tokens(9), 0, 4)
        room.wait(LATE)
        assert room.counts() == {verdict: 1}


def test_blocks_behind_an_unknown_beginning_leave_it_open() -> None:
    room = Room()
    room.serve(tokens(1), cached=0)
    chain = chain_of(tokens(1))
    room.engine.publish([BlockStored(chain[1:], chain[0], tokens(1)[BLOCK:], BLOCK)])
    room.wait(LATE)
    assert room.counts() == {"skipped": 1}


def test_without_a_known_past_and_a_report_nothing_can_be_said() -> None:
    core = make_core([publishing("w", num_blocks=1000)])
    room = Room()
    room.core = core
    slot = core.slot_of("w")
    core.feed.connected(slot)
    room.serve(tokens(1), usage=False)
    room.wait(LATE)
    assert room.counts() == {"skipped": 1}


def test_one_prompt_is_followed_at_a_time() -> None:
    room = Room()
    for name in range(3):
        room.serve(tokens(name), cached=0)
    room.wait(LATE)
    assert room.counts() == {"differ": 1}


def test_once_settled_only_a_sample_is_followed() -> None:
    room = Room()
    for name in range(20):
        room.serve(tokens(name), stores=tokens(name), cached=0)
    assert room.counts() == {"agree": 2}
    room.wait(PARITY_SAMPLE_SECONDS)
    room.serve(tokens(30), stores=tokens(30), cached=0)
    assert room.counts() == {"agree": 3}


def test_persistent_failure_degrades_and_evidence_raises_again() -> None:
    room = degraded_room()
    reason = room.core.worker("w").trust.reason
    assert "tokenizer or chat template" in reason
    decision = room.serve(tokens(7), stores=tokens(7), cached=0)
    assert (decision.trust, decision.details["trust_reason"]) == ("degraded", reason)
    assert room.trust is TrustLevel.DEGRADED, "one is not enough"
    room.serve(tokens(8), stores=tokens(8), cached=0)
    assert room.trust is TrustLevel.EXACT
    assert room.serve(tokens(7), cached=3 * BLOCK).expected_cached_tokens == 3 * BLOCK


def test_degraded_overlap_is_zero_and_the_bridge_counts() -> None:
    room = degraded_room()
    room.serve(tokens(7), stores=tokens(70), cached=0)
    room.engine.store(tokens(7))
    decision = room.serve(tokens(7), cached=0)
    assert decision.details["exact_blocks"] == 0
    assert decision.expected_cached_tokens == 3 * BLOCK
    room.now += 60.0
    assert room.serve(tokens(7), cached=0).expected_cached_tokens == 0


def test_another_process_is_judged_anew() -> None:
    room = degraded_room()
    room.core.observe_health("w", HealthSign.RESTARTED, now=room.now)
    assert room.trust is TrustLevel.EXACT
    assert room.counts() == {}


def test_another_process_that_only_its_events_show_is_judged_anew() -> None:
    room = degraded_room()
    room.core.feed.receive(room.core.slot_of("w"), 0, b"\x93\xcb@\x1c\x00\x00\x00\x00\x00\x00\x90\x00")
    room.wait(0.0)
    assert room.trust is TrustLevel.EXACT


def test_an_adapter_is_a_subject_of_its_own() -> None:
    room = Room(models=(ServedModel(MODEL), ServedModel("a1", parent=MODEL)))
    room.serve(tokens(0), stores=tokens(0), cached=0)
    for name in range(1, 4):
        room.serve(tokens(name), stores=tokens(50 + name), cached=0, model="a1")
        room.wait(LATE)
    assert room.core.parity("w").warning == "LoRA adapter a1 has no blocks under its name"
    assert room.trust is TrustLevel.EXACT


def test_nothing_is_followed_that_engines_do_not_foretell() -> None:
    room = Room()
    room.core.route(request("r"), prompt_of(tokens(1), exact=False), now=0.0)
    room.core.finish("r", End.DONE, now=0.0)
    room.wait(LATE)
    assert room.counts() == {}


# Cached tokens


def test_cached_tokens_as_expected_agree_and_zeros_say_nothing() -> None:
    room = Room()
    room.serve(tokens(1), stores=tokens(1), cached=0)
    assert room.counts(Check.CACHED) == {"skipped": 1}
    room.serve(tokens(1), cached=3 * BLOCK)
    assert room.counts(Check.CACHED) == {"skipped": 1, "agree": 1}


def test_cached_tokens_that_stay_others_are_warned_of_and_degrade_nothing() -> None:
    room = Room()
    for name in range(3):
        room.serve(tokens(name), stores=tokens(name), cached=2 * BLOCK)
    assert room.counts(Check.CACHED) == {"differ": 3}
    assert "more cached tokens than its events let expect" in room.core.parity("w").warning
    assert room.trust is TrustLevel.EXACT


def test_what_did_not_fit_the_index_explains_more_cached_tokens() -> None:
    room = Room()
    room.core.feed.stats(room.engine.slot).num_blocks_dropped = 1
    for name in range(3):
        room.serve(tokens(name), stores=tokens(name), cached=2 * BLOCK)
    assert room.counts(Check.CACHED) == {"skipped": 3}


def test_where_tokens_differ_no_events_are_blamed_for_cached_tokens() -> None:
    room = Room()
    room.core.observe_tokens("w", MODEL, Outcome.DIFFERS, "its template differs")
    for name in range(3):
        room.serve(tokens(name), stores=tokens(name), cached=0)
        room.serve(tokens(name), cached=0)
    (finding,) = room.core.parity("w").findings(Check.CACHED).values()
    assert (finding.evidence.verdict, finding.note) == (Verdict.DIFFERS, "its template differs")


def test_one_block_less_is_what_speculative_decoding_does() -> None:
    room = Room()
    for name in range(5):
        room.serve(tokens(name), stores=tokens(name), cached=0)
        room.serve(tokens(name), cached=2 * BLOCK)
    assert room.counts(Check.CACHED) == {"skipped": 10}
    room.serve(tokens(9), stores=tokens(9), cached=0)
    room.serve(tokens(9), cached=BLOCK)
    assert room.counts(Check.CACHED) == {"skipped": 11, "differ": 1}


def test_a_request_that_had_company_says_nothing_of_cached_tokens() -> None:
    room = Room()
    room.core.route(request("other"), prompt_of(tokens(9)), now=0.0)
    room.serve(tokens(1), cached=2 * BLOCK)
    assert room.counts(Check.CACHED) == {"skipped": 1}


def test_an_engine_that_reports_none_is_said_to() -> None:
    room = Room()
    room.serve(tokens(1), stores=tokens(1), cached=None)
    finding = next(iter(room.core.parity("w").findings(Check.CACHED).values()))
    assert "--enable-prompt-tokens-details" in finding.note
    assert finding.evidence.verdict is Verdict.OPEN


# What was there before us


def late_room() -> Room:
    """Its past is unknown: no replay socket, and the first message has not come yet."""
    room = Room()
    room.core = make_core([publishing("w", num_blocks=1000, models=room.core.worker("w").worker.models)])
    room.core.feed.connected(room.core.slot_of("w"))
    room.engine.core = room.core
    return room


def learnt(room: Room) -> int:
    return room.core.feed.stats(room.core.slot_of("w")).num_learnt_blocks


def test_what_a_warm_worker_reports_is_expected_of_it_from_then_on() -> None:
    room = late_room()
    assert room.serve(tokens(1), cached=3 * BLOCK).expected_cached_tokens == 0
    assert learnt(room) == 3
    room.wait(60.0)
    decision = room.serve(tokens(1), cached=3 * BLOCK)
    assert (decision.expected_cached_tokens, decision.details["exact_blocks"]) == (3 * BLOCK, 3)
    assert room.core.parity("w").warning == ""
    room.core.check()


def test_a_report_of_less_takes_back_what_was_learnt() -> None:
    room = late_room()
    room.serve(tokens(1), cached=3 * BLOCK)
    room.wait(60.0)
    room.serve(tokens(1), cached=BLOCK)
    assert learnt(room) == 1


@pytest.mark.parametrize("fields", [{"salt": "s"}, {"model": "a1"}])
def test_nothing_is_learnt_where_events_could_never_contradict(fields) -> None:
    room = Room(models=(ServedModel(MODEL), ServedModel("a1", parent=MODEL)))
    room.core = make_core([room.core.worker("w").worker])
    room.core.feed.connected(room.core.slot_of("w"))
    room.serve(tokens(1), cached=3 * BLOCK, **fields)
    assert learnt(room) == 0


def test_nothing_is_learnt_where_all_of_the_past_is_known_or_nothing_agrees() -> None:
    room = Room()
    room.serve(tokens(1), cached=3 * BLOCK)
    assert learnt(room) == 0, "its first message was number 0"
    room = degraded_room()
    room.serve(tokens(8), cached=3 * BLOCK)
    assert learnt(room) == 0


def test_an_emptied_cache_is_known_at_once() -> None:
    room = late_room()
    room.serve(tokens(1), cached=3 * BLOCK)
    room.core.cache_emptied("w")
    assert learnt(room) == 0
    assert room.serve(tokens(1), cached=0).expected_cached_tokens == 0
    room.core.cache_emptied("nobody")


def test_tokens_are_noted_for_a_worker_that_is_there() -> None:
    room = Room()
    room.core.observe_tokens("w", MODEL, Outcome.DIFFERS, "other tokens")
    assert room.core.parity("w").warning == "other tokens"
    room.core.observe_tokens("nobody", MODEL, Outcome.DIFFERS, "other tokens")
    assert room.core.parity("nobody") is None


def test_totals_of_the_engine_stand_in_for_answers_that_do_not_tell() -> None:
    room = late_room()
    room.now = 1.0
    room.core.observe_cache_totals("w", CacheTotals(500, 0), asked_at=0.9, now=1.0)
    room.now = 2.0
    room.serve(tokens(1), cached=None)
    room.core.observe_cache_totals("w", CacheTotals(564, 48), asked_at=3.0, now=3.0)
    assert learnt(room) == 3
    room.now = 60.0
    assert room.serve(tokens(1), cached=None).expected_cached_tokens == 3 * BLOCK
    room.core.observe_cache_totals("w", CacheTotals(628, 64), asked_at=61.0, now=61.0)
    assert learnt(room) == 1, "less than was believed: the rest goes"
    room.core.observe_cache_totals("nobody", CacheTotals(1, 1), asked_at=0.0, now=0.0)
