"""The sequencer's table, row by row, and its bounds. Whole recoveries are in test_recovery.py."""

from __future__ import annotations

import pytest

from indexer import sequencer as sequencer_module
from indexer.limits import LATE_MESSAGES, REPLAY_ATTEMPTS
from indexer.sequencer import Apply, Ask, Forget, Message, Sequencer, State, Step


def message(sequence: int, content: str = "", timestamp: float | None = None) -> Message:
    """Unless told otherwise, later numbers have later times."""
    payload = f"{sequence} {content}".encode()
    return Message(sequence, payload, float(sequence) if timestamp is None else timestamp)


def followed(*sequences: int, can_replay: bool = True) -> Sequencer:
    """A sequencer that has applied these messages."""
    sequencer = Sequencer(can_replay=can_replay)
    for sequence in sequences:
        assert apply_of(sequencer.live(message(sequence))) == [sequence]
    return sequencer


def apply_of(steps: list[Step]) -> list[int]:
    return [step.message.sequence for step in steps if isinstance(step, Apply)]


def kinds(steps: list[Step]) -> list[type]:
    return [type(step) for step in steps]


# One row per case of a live message: with a replay socket, and without.
@pytest.mark.parametrize(
    ("incoming", "with_replay", "without"),
    [
        (message(3), [Apply], [Apply]),
        (message(5), [Ask], [Forget, Apply]),
        (message(2), [], []),
        (message(0), [], []),
        (message(2, "other content"), [Forget, Ask], [Forget, Apply]),
        (message(0, "other content", timestamp=9.0), [Forget, Ask], [Forget, Apply]),
    ],
    ids=["next", "gap", "repeated", "repeated long ago", "restart, same number", "restart, lower number"],
)
def test_live_messages(incoming: Message, with_replay: list[type], without: list[type]) -> None:
    assert kinds(followed(0, 1, 2).live(incoming)) == with_replay
    assert kinds(followed(0, 1, 2, can_replay=False).live(incoming)) == without


@pytest.mark.parametrize(("timestamp", "expected"), [(1.0, []), (2000.0, [Forget, Ask])])
def test_a_lower_number_out_of_memory_is_late_or_of_another_process(
    timestamp: float, expected: list[type]
) -> None:
    """Its content is not known any more, but its time tells."""
    sequencer = followed(*range(1_000))
    assert kinds(sequencer.live(message(3, "?", timestamp))) == expected


def test_a_number_far_ahead_does_not_make_a_stream_late_for_ever() -> None:
    sequencer = followed(0, can_replay=False)
    assert kinds(sequencer.live(message(2**64 - 5, timestamp=1e9))) == [Forget, Apply]
    for sequence in range(1, LATE_MESSAGES + 1):
        assert sequencer.live(message(sequence)) == []
    assert kinds(sequencer.live(message(LATE_MESSAGES + 1))) == [Forget, Apply]
    assert kinds(sequencer.live(message(LATE_MESSAGES + 2))) == [Apply]


def test_the_first_message() -> None:
    assert Sequencer(can_replay=True).live(message(7)) == [Ask(0)]
    assert kinds(Sequencer(can_replay=False).live(message(7))) == [Forget, Apply]
    assert kinds(Sequencer(can_replay=True).live(message(0))) == [Apply], "nothing came before number 0"


def test_a_gap_is_asked_for_from_its_beginning() -> None:
    sequencer = followed(0, 1, 2)
    assert sequencer.live(message(5)) == [Ask(3)]
    assert sequencer.doubt == "messages 3 to 4 were missed"
    assert sequencer.stats.num_gaps == 1


def test_what_came_meanwhile_follows_the_replay() -> None:
    sequencer = followed(0)
    sequencer.live(message(3))
    assert sequencer.live(message(4)) == []
    assert apply_of(sequencer.replayed(message(1))) == [1]
    assert apply_of(sequencer.replayed(message(2))) == [2]
    assert apply_of(sequencer.replayed(message(3))) == [3]
    assert apply_of(sequencer.replay_ended()) == [4]
    assert (sequencer.state, sequencer.doubt) == (State.FOLLOWING, "")


def test_a_hole_after_the_replay_is_asked_for_again() -> None:
    sequencer = followed(0)
    sequencer.live(message(5))
    sequencer.replayed(message(1))
    assert sequencer.replay_ended() == [Ask(2)]
    assert sequencer.state is State.REPLAYING


def test_a_hole_that_is_never_filled_is_given_up() -> None:
    sequencer = followed(0)
    sequencer.live(message(5))
    for _ in range(REPLAY_ATTEMPTS - 1):
        assert sequencer.replay_ended() == [Ask(1)]
    steps = sequencer.replay_ended()
    assert kinds(steps) == [Forget, Apply]
    assert (sequencer.doubt, sequencer.missing_history) == ("", "the history before message 5 is unknown")


def test_a_replay_that_begins_too_late() -> None:
    sequencer = followed(0)
    sequencer.live(message(9))
    steps = sequencer.replayed(message(7))
    assert kinds(steps) == [Forget, Apply]
    assert sequencer.doubt, "the replay is not over"
    assert apply_of(sequencer.replayed(message(8))) == [8]
    assert apply_of(sequencer.replay_ended()) == [9]
    assert sequencer.missing_history == "the engine no longer has what came before message 7"


def test_answers_without_a_question_are_ignored() -> None:
    sequencer = followed(0, 1)
    assert sequencer.replayed(message(2)) == []
    assert sequencer.replay_ended() == []
    assert sequencer.replay_failed("late") == []
    assert sequencer.state is State.FOLLOWING


def test_answers_before_what_was_asked_are_ignored() -> None:
    """As a replay asked for earlier would bring them."""
    sequencer = followed(0, 1, 2)
    sequencer.live(message(9))
    assert sequencer.replayed(message(2, "of an older question")) == []
    assert sequencer.last_sequence == 2


def test_first_contact_replays_everything() -> None:
    sequencer = Sequencer(can_replay=True)
    assert sequencer.doubt == "no contact with the event socket yet"
    assert sequencer.connected() == [Ask(0)]
    assert apply_of(sequencer.replayed(message(0))) == [0]
    assert sequencer.replay_ended() == []
    assert (sequencer.doubt, sequencer.missing_history) == ("", "")


def test_first_contact_with_an_engine_that_published_nothing() -> None:
    sequencer = Sequencer(can_replay=True)
    sequencer.connected()
    sequencer.replay_ended()
    assert (sequencer.doubt, sequencer.last_sequence) == ("", -1)
    assert apply_of(sequencer.live(message(0))) == [0]
    assert sequencer.live(message(2)) == [Ask(1)]


def test_first_contact_without_a_replay_socket() -> None:
    sequencer = Sequencer(can_replay=False)
    assert kinds(sequencer.connected()) == [Forget]
    assert sequencer.doubt == ""
    assert "no replay socket" in sequencer.missing_history
    assert kinds(sequencer.live(message(40))) == [Forget, Apply]


def test_a_lost_connection_is_in_doubt_until_it_is_verified() -> None:
    sequencer = followed(0, 1)
    assert sequencer.disconnected() == []
    assert sequencer.doubt == "the connection to the event socket is lost"
    assert sequencer.connected() == [Ask(1)]
    assert sequencer.doubt == "reconnected: is it the same engine process?"
    assert sequencer.replayed(message(1)) == [], "the last message, byte for byte"
    assert apply_of(sequencer.replayed(message(2))) == [2]
    assert sequencer.replay_ended() == []
    assert sequencer.doubt == ""
    assert sequencer.stats.num_restarts == 0


def test_a_connection_lost_during_a_replay_stays_in_doubt_after_it() -> None:
    sequencer = followed(0)
    sequencer.live(message(2))
    sequencer.disconnected()
    sequencer.replayed(message(1))
    sequencer.replay_ended()
    assert sequencer.doubt == "the connection to the event socket is lost"


@pytest.mark.parametrize("answer", [message(1, "other content"), message(2), None], ids=str)
def test_another_process_behind_the_new_connection(answer: Message | None) -> None:
    """The last message is another one, or too old to be had, or was never sent."""
    sequencer = followed(0, 1)
    sequencer.disconnected()
    sequencer.connected()
    steps = sequencer.replayed(answer) if answer else sequencer.replay_ended()
    assert kinds(steps) == [Forget, Ask]
    assert steps[-1] == Ask(0)
    assert sequencer.stats.num_restarts == 1


def test_reconnecting_without_a_replay_socket_forgets() -> None:
    sequencer = followed(0, 1, can_replay=False)
    sequencer.disconnected()
    assert kinds(sequencer.connected()) == [Forget]
    assert kinds(sequencer.live(message(2))) == [Forget, Apply], "it could be another process's number 2"


def test_messages_held_back_before_a_reconnect_are_not_mixed_in() -> None:
    sequencer = followed(0)
    sequencer.live(message(2, "of the old process"))
    sequencer.connected()
    sequencer.replay_ended()
    sequencer.replayed(message(0, "new"))
    sequencer.replayed(message(1, "new"))
    assert sequencer.replay_ended() == []
    assert sequencer.last_sequence == 1


def test_failed_replays_are_tried_again_and_then_given_up() -> None:
    sequencer = followed(0)
    sequencer.live(message(5))
    for _ in range(REPLAY_ATTEMPTS - 1):
        assert sequencer.replay_failed("silence") == [Ask(1)]
    assert kinds(sequencer.replay_failed("silence")) == [Forget, Forget, Apply]
    assert sequencer.stats.num_replays == REPLAY_ATTEMPTS
    assert sequencer.live(message(9)) == [Ask(6)], "the next gap is asked for again"


def test_giving_up_without_news_goes_on_from_the_next_message() -> None:
    sequencer = Sequencer(can_replay=True)
    sequencer.connected()
    for _ in range(REPLAY_ATTEMPTS):
        sequencer.replay_failed("silence")
    assert sequencer.doubt == "", "nothing is claimed"
    assert "silence" in sequencer.missing_history
    assert apply_of(sequencer.live(message(12))) == [12]


def test_a_failed_replay_goes_on_where_it_broke_off() -> None:
    sequencer = Sequencer(can_replay=True)
    sequencer.connected()
    sequencer.replayed(message(0))
    assert sequencer.replay_failed("silence") == [Ask(0)]
    assert sequencer.replayed(message(0)) == []
    assert apply_of(sequencer.replayed(message(1))) == [1]


@pytest.mark.parametrize(("bound", "value"), [("BUFFERED_MESSAGES", 2), ("BUFFERED_BYTES", 5)])
def test_what_does_not_fit_the_buffer_is_asked_for_again(
    bound: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequencer_module, bound, value)
    sequencer = followed(0)
    for sequence in (2, 3, 4):
        sequencer.live(message(sequence))
    sequencer.replayed(message(1))
    assert sequencer.replay_ended() == [Ask(2)]
    for sequence in (2, 3, 4):
        sequencer.replayed(message(sequence))
    assert sequencer.replay_ended() == []
    assert sequencer.last_sequence == 4
