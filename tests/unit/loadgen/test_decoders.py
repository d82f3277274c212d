from __future__ import annotations

from loadgen.decoders import Decoders
from loadgen.sequences import EngineSequence


def joined(decoders, *, prompt=6, max_tokens=10, num_blocks=2):
    """A sequence with its first token, in blocks of four."""
    sequence = EngineSequence(id="r", num_prompt_tokens=prompt, max_tokens=max_tokens, block_tokens=4)
    sequence.num_computed, sequence.num_generated = prompt, 1
    sequence.block_ids = list(range(num_blocks))
    decoders.join(sequence)
    return sequence


def test_tokens_are_counted_for_all_at_once():
    decoders = Decoders()
    early = joined(decoders)
    decoders.advance(2)
    late = joined(decoders, prompt=3, num_blocks=1)
    assert decoders.advance(3) == 6
    decoders.check()
    assert (early.num_generated, early.num_computed) == (6, 11)
    assert (late.num_generated, late.num_computed) == (4, 6)
    assert decoders.num_tokens == 17
    assert list(decoders) == [early, late]
    assert decoders.youngest is late


def test_steps_are_alike_until_somebody_ends_or_is_full():
    decoders = Decoders()
    sequence = joined(decoders, prompt=6, max_tokens=4)
    # Two blocks have room for tokens 6 and 7; the third step needs another one, and is the last.
    assert decoders.steps_alike() == 2
    assert decoders.next_full() is None
    decoders.advance(2)
    assert decoders.needs_blocks()
    assert decoders.next_full() is sequence
    assert decoders.next_full() is None
    assert decoders.steps_alike() == 1
    decoders.advance(1)
    assert decoders.next_finished() is sequence


def test_who_has_left_is_neither_full_nor_finished():
    decoders = Decoders()
    gone, stays = joined(decoders, max_tokens=3), joined(decoders, max_tokens=9)
    decoders.leave(gone)
    assert gone not in decoders
    assert decoders.steps_alike() == 2
    decoders.advance(8)
    assert decoders.next_full() is stays
    assert decoders.next_finished() is stays
    decoders.leave(stays)
    assert decoders.next_finished() is None
    assert (len(decoders), decoders.num_tokens) == (0, 0)


def test_who_comes_back_is_due_anew():
    decoders = Decoders()
    sequence = joined(decoders, max_tokens=6)
    decoders.advance(1)
    decoders.leave(sequence)
    sequence.num_computed += 1
    sequence.num_generated += 1
    decoders.join(sequence)
    decoders.advance(3)
    assert decoders.next_finished() is sequence
