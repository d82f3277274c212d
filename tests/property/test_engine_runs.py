"""Many steps at a time must be the same as one after the other, whatever comes when."""

from __future__ import annotations

from heapq import heappop, heappush
from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.engine import EngineModel
from loadgen.sequences import EngineSequence
from tests.support.simulations import small_engine

arrivals = st.lists(
    st.tuples(
        st.floats(0, 1.5),  # seconds
        st.integers(0, 3),  # family: its blocks are shared
        st.integers(1, 700),  # prompt tokens
        st.integers(1, 150),  # output tokens
    ),
    min_size=1,
    max_size=8,
)
ONE_BY_ONE, AT_ONCE = 1, 1 << 30


def drive(arrived, max_steps):
    """When each request got its first and last token, what it found cached, and all events in order."""
    engine = EngineModel(small_engine(num_blocks=17, max_sequences=5))
    agenda = [(at, number, None) for number, (at, *_rest) in enumerate(sorted(arrived))]
    seen = SimpleNamespace(started={}, ended={}, events=[], engine=engine, cached={})
    wake, is_idle, numbers = 0, True, {}

    def begin(now):
        nonlocal wake, is_idle
        ends_at = engine.start_step(now, max_steps)
        is_idle = ends_at is None
        assert not is_idle or not engine.num_waiting, "nobody waits while nothing runs"
        check_batch(engine)
        if ends_at is not None:
            assert ends_at > now
            wake += 1
            heappush(agenda, (ends_at, 1000 + wake, wake))

    while agenda:
        now, number, ended = heappop(agenda)
        if ended is None:
            waited = engine.num_waiting
            _at, family, prompt, output = sorted(arrived)[number]
            hashes = [family * 100 + i for i in range(prompt // 64)]
            sequence = EngineSequence(
                id="r", num_prompt_tokens=prompt, max_tokens=output, block_tokens=64, hashes=hashes
            )
            numbers[sequence] = number
            engine.enqueue(sequence)
            if is_idle:
                begin(now)
            elif not waited and (ends_at := engine.shorten(now)) is not None:
                assert now <= ends_at
                wake += 1
                heappush(agenda, (ends_at, 1000 + wake, wake))
        elif ended == wake:
            output = engine.finish_step()
            if max_steps > 1:  # each step of its own would take a minute
                engine.check()
            seen.started.update({numbers[each]: now for each in output.started})
            seen.ended.update({numbers[each]: now for each in output.finished})
            seen.events += output.events
            begin(now)
    seen.cached = {number: sequence.cached_tokens for sequence, number in numbers.items()}
    return seen


def check_batch(engine):
    settings = engine.settings
    assert engine.num_running <= settings.max_sequences
    scheduled = sum(sequence.num_scheduled for sequence in engine._chunks) + len(engine._decoders)
    assert scheduled <= settings.max_batched_tokens
    assert engine.pool.num_cached <= engine.pool.num_usable
    assert engine.pool.num_free >= 0


def rounded(times):
    return {number: round(at, 9) for number, at in times.items()}


@settings(max_examples=60, deadline=None)
@given(arrivals)
def test_runs_of_steps_are_steps(arrived):
    single, runs = drive(arrived, ONE_BY_ONE), drive(arrived, AT_ONCE)
    assert len(single.ended) == len(arrived)
    assert rounded(single.started) == rounded(runs.started)
    assert rounded(single.ended) == rounded(runs.ended)
    assert single.cached == runs.cached
    assert single.events == runs.events
    for name in ("steps", "generation_tokens", "computed_prompt_tokens", "preemptions", "finished"):
        assert getattr(single.engine.counters, name) == getattr(runs.engine.counters, name), name
    assert abs(single.engine.counters.busy_seconds - runs.engine.counters.busy_seconds) < 1e-6


@settings(max_examples=60, deadline=None)
@given(arrivals)
def test_work_is_conserved(arrived):
    """Everything asked for is computed once, and again only after a preemption; the engine rests only when
    there is nothing to do."""
    seen = drive(arrived, AT_ONCE)
    counters = seen.engine.counters
    prompt_tokens = sum(prompt for _at, _family, prompt, _output in arrived)
    assert counters.generation_tokens == sum(output for *_rest, output in arrived)
    assert counters.computed_prompt_tokens >= prompt_tokens - sum(seen.cached.values())
    if not counters.preemptions:
        assert counters.computed_prompt_tokens == prompt_tokens - sum(seen.cached.values())
    assert counters.busy_seconds <= max(seen.ended.values()) - min(at for at, *_rest in arrived) + 1e-9
    assert seen.engine.kv_usage == 0.0
