"""The engine model by hand-counted examples, and held against recorded requests of a real engine."""

from __future__ import annotations

import pytest

from indexer.events import AllBlocksCleared, BlockRemoved, BlockStored
from loadgen.engine import EngineSettings
from loadgen.engine_counters import EngineCounters
from loadgen.step_time import published_curves
from loadgen.token_engine import TokenEngine
from tests.support.engines import answer, copies_after, run_until_idle, small_model, step
from tests.support.recordings import recording

PROMPT = list(range(100, 110))  # two blocks of four and a half one
CURVES = published_curves(64)


def stored(events):
    return [event for event in events if isinstance(event, BlockStored)]


def test_a_prompt_is_stored_in_order_with_its_tokens():
    _sequence, events = answer(small_model(), PROMPT)
    (event,) = events
    assert isinstance(event, BlockStored)
    assert event.parent_hash is None
    assert len(event.block_hashes) == 2
    assert event.token_ids == PROMPT[:8]
    assert event.block_tokens == 4


def test_the_second_time_the_prefix_is_cached():
    model = small_model()
    first, _ = answer(model, PROMPT)
    second, events = answer(model, PROMPT)
    assert (first.cached_tokens, second.cached_tokens) == (0, 8)
    assert events == []
    assert second.tokens == first.tokens
    assert model.counters.prefix_cache_queries == 20
    assert model.counters.prefix_cache_hits == 8


def test_a_prompt_of_whole_blocks_computes_its_last_block_again_and_stores_a_copy():
    model = small_model()
    _first, events = answer(model, PROMPT[:8])
    second, again = answer(model, PROMPT[:8])
    assert second.cached_tokens == 4
    (copy,) = stored(again)
    assert copy.block_hashes == stored(events)[0].block_hashes[1:]
    assert copy.parent_hash == stored(events)[0].block_hashes[0]


def test_all_that_an_answer_adds_to_the_counters():
    model = small_model()
    assert model.counters == EngineCounters()
    answer(model, PROMPT)
    assert model.counters == EngineCounters(
        prefix_cache_queries=10,
        prompt_tokens=10,
        computed_prompt_tokens=10,
        generation_tokens=1,
        finished=1,
        steps=1,
        busy_seconds=pytest.approx(CURVES.prefill_ms(10, 100) / 1000),
    )


def test_another_tail_shares_the_head():
    model = small_model()
    _, first = answer(model, PROMPT)
    sequence, events = answer(model, [*PROMPT[:4], 1, 2, 3, 4, 5])
    assert sequence.cached_tokens == 4
    assert stored(events)[0].parent_hash == stored(first)[0].block_hashes[0]


def test_generated_blocks_are_announced_and_can_be_continued():
    model = small_model()
    sequence, events = answer(model, PROMPT, max_tokens=4)
    # 10 prompt tokens and 4 generated; the last one was never computed, so block 3 (tokens 8 to 11) is full.
    assert [len(event.block_hashes) for event in stored(events)] == [2, 1]
    assert stored(events)[1].token_ids == sequence.tokens[8:12]
    following, _ = answer(model, [*sequence.tokens, 5])
    assert following.cached_tokens == 12


def test_salt_and_adapter_keep_prompts_apart():
    model = small_model()
    answer(model, PROMPT)
    salted, events = answer(model, PROMPT, cache_salt="s")
    assert salted.cached_tokens == 0
    assert stored(events)[0].cache_salt == "s"
    adapted, events = answer(model, PROMPT, adapter="a")
    assert adapted.cached_tokens == 0
    assert stored(events)[0].adapter == "a"
    assert answer(model, PROMPT, cache_salt="s")[0].cached_tokens == 8


def test_a_long_prompt_is_computed_in_chunks_beside_decoders():
    model = small_model()
    decoder = model.submit("d", PROMPT[:2], 20)
    step(model)
    prompt = model.submit("p", list(range(40)), 1)
    _, output = step(model)
    assert output.advanced == [decoder]
    assert prompt.num_computed == 31  # 32 tokens a step, of which the decoder has one
    _, output = step(model)
    assert output.advanced == [decoder, prompt]
    assert prompt.finished


def test_step_time_is_the_curve_divided_by_the_speedup():
    model = small_model(speedup=2.0)
    model.submit("d", PROMPT, 2)
    ends_at, _ = step(model, now=5.0)
    assert ends_at == pytest.approx(5.0 + CURVES.prefill_ms(10, 100) / 2000)
    ends_at, _ = step(model, now=ends_at)
    assert ends_at - 5.0 == pytest.approx((CURVES.prefill_ms(10, 100) + CURVES.decode_ms(1, 11)) / 2000)


def test_a_slowed_worker_takes_longer():
    model = small_model()
    model.slowdown = 3.0
    model.submit("d", PROMPT, 1)
    assert model.start_step(0.0) == pytest.approx(3 * CURVES.prefill_ms(10, 100) / 1000)


def test_sequences_beyond_the_limit_wait():
    model = small_model(max_sequences=2)
    for number in range(3):
        model.submit(str(number), [number + 1], 2)
    step(model)
    assert (model.num_running, model.num_waiting) == (2, 1)
    run_until_idle(model)
    assert model.counters.finished == 3


def test_a_prompt_that_does_not_fit_waits_and_keeps_its_place():
    model = small_model()
    model.submit("big", list(range(50)), 1)
    step(model)
    waiting = model.submit("waiting", list(range(200, 220)), 1)
    small = model.submit("small", [7], 1)
    _, output = step(model)
    assert waiting not in output.advanced
    assert small not in output.advanced
    run_until_idle(model)
    assert model.counters.finished == 3


def test_without_memory_the_youngest_starts_again():
    model = small_model()
    old = model.submit("old", list(range(28)), 10)
    young = model.submit("young", list(range(100, 128)), 10)
    _, events = run_until_idle(model)
    assert model.counters.preemptions >= 1
    assert old.finished
    assert young.finished
    assert (len(old.tokens), len(young.tokens)) == (38, 38)
    assert young.cached_tokens == 0, "what usage reports is the first admission"
    model.check()
    assert sum(copies_after(events).values()) <= model.pool.num_usable


def test_evictions_are_announced():
    model = small_model()
    first, events = answer(model, list(range(40)))
    _, more = answer(model, list(range(100, 150)))
    copies = copies_after([*events, *more])
    assert any(isinstance(event, BlockRemoved) for event in more)
    assert [copies[block_hash] for block_hash in first.hashes] == [1] * 3 + [
        0
    ] * 7  # 13 blocks, 6 of them unused


def test_abort_while_waiting():
    model = small_model(max_sequences=1)
    running, waiting = model.submit("a", PROMPT, 3), model.submit("b", PROMPT, 3)
    step(model)
    model.abort(waiting)
    run_until_idle(model)
    assert running.num_generated == 3
    assert waiting.num_generated == 0
    assert (model.counters.finished, model.counters.aborted) == (1, 1)


def test_abort_within_a_step_frees_memory_and_gives_no_token():
    model = small_model()
    sequence = model.submit("a", PROMPT, 5)
    model.start_step(0.0)
    model.abort(sequence)
    output = model.finish_step()
    assert list(output.advanced) == []
    assert model.pool.num_free == model.pool.num_usable
    assert answer(model, PROMPT)[0].cached_tokens == 8, "full blocks stay cached"
    model.abort(sequence)
    assert model.counters.aborted == 1
    model.check()


def test_reset_leaves_with_the_next_step_and_is_refused_while_running():
    model = small_model()
    answer(model, PROMPT)
    assert model.reset_prefix_cache()
    sequence, events = answer(model, PROMPT)
    assert isinstance(events[0], AllBlocksCleared)
    assert sequence.cached_tokens == 0
    model.submit("a", PROMPT, 5)
    model.start_step(0.0)
    assert not model.reset_prefix_cache()


def test_two_equal_prompts_at_once_share_what_the_step_computes():
    model = small_model(max_batched_tokens=64)
    first, second = model.submit("a", PROMPT, 1), model.submit("b", PROMPT, 1)
    run_until_idle(model)
    assert (first.cached_tokens, second.cached_tokens) == (0, 8)


# The next turn of a chat contains what the real engine had answered; the model answers other words.
CONTINUES_AN_ANSWER = {"chat, turn 3"}
TWO_ANSWERS = {"n=2 with temperature"}


@pytest.mark.parametrize("name", ["vllm-0.32.0", "vllm-0.32.0-bytes", "vllm-0.23.0"])
def test_cached_tokens_as_a_real_engine_reported(name):
    """The recorded requests, in their order, through a model with the recorded engine's sizes."""
    model = TokenEngine(
        EngineSettings(
            block_tokens=32, num_blocks=64, max_batched_tokens=256, max_sequences=8, max_model_len=1024
        )
    )
    compared = 0
    for asked, messages in recording(name).moments():
        if any(b"AllBlocksCleared" in recording(name).payloads[rank][seq] for rank, seq in messages):
            assert model.reset_prefix_cache()
        sequences = [(request, _submit(model, request)) for request in asked]
        run_until_idle(model)
        for request, submitted in sequences:
            if request.label in CONTINUES_AN_ANSWER:
                continue
            assert sum(each.cached_tokens for each in submitted) == request.cached_tokens, request.label
            compared += 1
    assert compared > 25


def _submit(model, request):
    adapter = "" if request.model == "tiny-llama" else request.model
    return [
        model.submit(request.id, prompt, 4, adapter=adapter, cache_salt=request.cache_salt)
        for prompt in request.prompts * (1 + (request.label in TWO_ANSWERS))
    ]


def transferred(model, prompt, tokens, max_tokens=1):
    sequence = model.sequence("r", prompt, max_tokens)
    sequence.transferred_tokens = tokens
    model.enqueue(sequence)
    return sequence


def test_of_a_transferred_prompt_only_the_last_token_is_computed():
    model = small_model()
    sequence = transferred(model, PROMPT, len(PROMPT))
    _ends_at, output = step(model)
    assert output.finished == [sequence]
    assert sequence.cached_tokens == 9
    assert model.counters.computed_prompt_tokens == 1
    assert model.counters.transferred_prompt_tokens == 9
    (event,) = stored(output.events)
    assert event.token_ids == PROMPT[:8]


def test_a_transferred_prompt_costs_what_a_decoder_costs():
    model = small_model()
    transferred(model, PROMPT, len(PROMPT))
    ends_at, _output = step(model)
    assert ends_at == pytest.approx(CURVES.decode_ms(1, len(PROMPT)) / 1000)


def test_what_is_cached_here_is_no_transfer():
    model = small_model()
    answer(model, PROMPT[:6])
    transferred(model, PROMPT, len(PROMPT))
    step(model)
    assert model.counters.prefix_cache_hits == 4
    assert model.counters.transferred_prompt_tokens == 5


def test_a_transferred_prompt_that_is_preempted_is_computed_here():
    model = small_model(num_blocks=9)
    old = model.submit("old", list(range(16)), 12)
    step(model)
    young = transferred(model, list(range(100, 112)), 12, max_tokens=6)
    run_until_idle(model)
    assert model.counters.preemptions == 1
    assert old.finished
    assert young.finished
    assert young.transferred_tokens == 0
    assert model.counters.computed_prompt_tokens > 16 + 1


def test_blocks_that_are_handed_over_stay_until_they_are_released():
    model = small_model()
    sequence = model.sequence("r", PROMPT, 1)
    sequence.is_handed_over = True
    model.enqueue(sequence)
    run_until_idle(model)
    assert sequence.finished
    assert (model.num_held, model.kv_usage) == (1, 3 / 16)
    assert not model.reset_prefix_cache()
    assert model.release(sequence)
    assert not model.release(sequence)
    assert (model.num_held, model.kv_usage) == (0, 0.0)
    assert answer(model, PROMPT)[0].cached_tokens == 8, "and they are cached"
    model.check()


def test_a_hand_over_that_is_aborted_holds_nothing():
    model = small_model()
    sequence = model.sequence("r", PROMPT, 2)
    sequence.is_handed_over = True
    model.enqueue(sequence)
    step(model)
    model.abort(sequence)
    assert (model.num_held, model.kv_usage) == (0, 0.0)
