"""Whatever comes in whatever order, the sequencer's steps keep their promises."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.limits import REPLAY_ATTEMPTS
from indexer.sequencer import Apply, Ask, Forget, Message, Sequencer, State, Step

messages = st.builds(
    lambda sequence, content, timestamp: Message(sequence, b"%d" % content, timestamp),
    st.integers(0, 12),
    st.integers(0, 1),
    st.floats(0, 100),
)
inputs = st.lists(
    st.one_of(
        st.tuples(st.just("live"), messages),
        st.tuples(st.just("replayed"), messages),
        st.tuples(st.sampled_from(["connected", "disconnected", "replay_ended"])),
        st.tuples(st.just("replay_failed"), st.just("a reason")),
    ),
    max_size=60,
)


def give(sequencer: Sequencer, name: str, *arguments: object) -> list[Step]:
    return getattr(sequencer, name)(*arguments)


@given(inputs=inputs, can_replay=st.booleans())
@settings(deadline=None)
def test_what_is_applied_since_the_last_forgetting_has_no_hole(inputs: list[tuple], can_replay: bool) -> None:
    sequencer = Sequencer(can_replay=can_replay)
    applied: list[int] = []
    for name, *arguments in inputs:
        for step in give(sequencer, name, *arguments):
            if isinstance(step, Forget):
                applied = []
            elif isinstance(step, Apply):
                applied.append(step.message.sequence)
        assert applied == list(range(applied[0], applied[0] + len(applied))) if applied else True
        if applied:
            assert sequencer.last_sequence == applied[-1]


@given(inputs=inputs, can_replay=st.booleans())
@settings(deadline=None)
def test_doubt_and_questions_go_together(inputs: list[tuple], can_replay: bool) -> None:
    """While a replay is awaited there is doubt; without a replay socket none is ever asked for."""
    sequencer = Sequencer(can_replay=can_replay)
    asked_last = 0  # a replay that failed is asked for once more, from where it had begun
    for name, *arguments in inputs:
        steps = give(sequencer, name, *arguments)
        asked = [step for step in steps if isinstance(step, Ask)]
        assert len(asked) <= 1 or not can_replay
        assert not (asked and not can_replay)
        if sequencer.state is State.REPLAYING:
            assert sequencer.doubt
        if asked:
            assert steps[-1] == asked[-1], "nothing is applied on top of an open question"
            assert asked[-1].from_sequence in (
                sequencer.next_sequence,
                sequencer.last_sequence,
                0,
                asked_last if name == "replay_failed" else 0,
            )
            asked_last = asked[-1].from_sequence


@given(inputs=inputs)
@settings(deadline=None)
def test_a_replay_that_never_comes_is_not_asked_for_forever(inputs: list[tuple]) -> None:
    sequencer = Sequencer(can_replay=True)
    for name, *arguments in inputs:
        give(sequencer, name, *arguments)
    num_before = sequencer.stats.num_replays
    for _ in range(20):
        give(sequencer, "replay_failed", "silence")
    assert sequencer.stats.num_replays - num_before <= 13 * REPLAY_ATTEMPTS, "at most for every message held"
    assert sequencer.state is not State.REPLAYING


@given(inputs=inputs, can_replay=st.booleans())
@settings(deadline=None)
def test_a_good_stream_heals_whatever_came_before(inputs: list[tuple], can_replay: bool) -> None:
    sequencer = Sequencer(can_replay=can_replay)
    for name, *arguments in inputs:
        give(sequencer, name, *arguments)
    stream = [Message(sequence, b"good %d" % sequence, 1000.0 + sequence) for sequence in range(5)]
    steps = give(sequencer, "connected")
    while steps and isinstance(steps[-1], Ask):
        for message in stream[steps[-1].from_sequence :]:
            steps = give(sequencer, "replayed", message)
            if steps and isinstance(steps[-1], Ask):
                break
        else:
            steps = give(sequencer, "replay_ended")
    give(sequencer, "live", Message(5, b"good 5", 1005.0))
    assert (sequencer.doubt, sequencer.last_sequence) == ("", 5)
    if can_replay:
        assert sequencer.missing_history == ""
