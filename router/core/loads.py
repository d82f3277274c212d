"""What was sent to each worker and has not ended: requests, prefill tokens, and the blocks that they hold.

A booking begins at dispatch and ends with its attempt, never with age: a long request is still load. When a
booking is made, released or freed is decided by `routing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from indexer.blocks import BlockHash, Unit
from indexer.byte_blocks import COVERED
from policies.types import Slot
from router.core.active_blocks import ActiveBlocks
from router.core.outcome import Outcome
from router.core.transfers import Received
from router.core.usage import NOTHING_EXPECTED, Expectation


@dataclass(slots=True, eq=False)
class Timing:
    """Of a booking whose time is kept: see `engine_clock`. Seconds and milliseconds.

    `booked_ms`: what its worker's queue was lengthened by. `x`: what the coefficients of its prefill are
    multiplied with.
    """

    booked_ms: float
    dispatched_at: float
    x: tuple[float, float, float]
    is_streamed: bool
    last_token_at: float = 0.0


@dataclass(slots=True, kw_only=True, eq=False)
class Booking:
    """One attempt of one request on one worker.

    `chain`: hashes of the prompt's complete blocks, shared with other active requests of the worker.
    `num_unshared_blocks`: complete blocks that are counted without a hash. `tail_tokens`: those of the last
    block, when it is not full. `prefill_tokens`: prompt tokens
    that the worker has to compute, 0 once they are done; `queued_prefill_tokens`: these and what waited
    before them. `num_tokens`: of the whole prompt. `is_started`: its first token was seen. `is_computed`: so,
    or taken to be. `was_alone`: until its first token the worker had no other request. `received`: of a
    prompt that is computed by another worker, which has a booking of its own.
    """

    request_id: str
    attempt: int
    slot: Slot
    unit: Unit
    chain: Sequence[BlockHash]
    num_unshared_blocks: int
    prefill_tokens: int
    num_tokens: int = 0
    tail_tokens: int = 0
    num_output_tokens: int = 0
    queued_prefill_tokens: int = 0
    booked_at: float = 0.0
    is_streamed: bool = False
    is_started: bool = False
    is_computed: bool = False
    was_alone: bool = False
    received: Received | None = None
    expectation: Expectation = NOTHING_EXPECTED
    timing: Timing | None = None

    @property
    def is_handed_over(self) -> bool:
        """Whether another worker computes its prompt."""
        return self.received is not None

    def leaves_its_prompt(self, outcome: Outcome) -> bool:
        """Whether the worker is taken to hold the prompt of an attempt that ended so.

        One that is not streamed shows nothing before its whole answer is there. When it was only its client
        that left, the forecast of its prefill stands.
        """
        is_foretold = not self.is_streamed and not self.is_handed_over and self.prefill_tokens == 0
        return self.is_started or (is_foretold and outcome is Outcome.CLIENT_GONE)


@dataclass(slots=True, eq=False)
class WorkerBookings:
    """Everything booked on one worker, and its sums. Decoding is who has its prompt computed."""

    bookings: dict[str, Booking] = field(default_factory=dict)
    prefill_tokens: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    num_decoding: int = 0
    decoding_prompt_tokens: int = 0
    tail_tokens: dict[Unit, int] = field(default_factory=lambda: dict.fromkeys(Unit, 0))
    token_blocks: ActiveBlocks = field(default_factory=lambda: ActiveBlocks(Unit.TOKENS))
    byte_blocks: ActiveBlocks = field(default_factory=lambda: ActiveBlocks(Unit.BYTES))

    @property
    def decoding_tokens(self) -> int:
        """Prompts and what was generated, of those that decode; nobody else has output."""
        return self.decoding_prompt_tokens + self.output_tokens

    def blocks(self, unit: Unit) -> ActiveBlocks:
        return self.token_blocks if unit is Unit.TOKENS else self.byte_blocks

    def check(self) -> None:
        bookings = self.bookings.values()
        assert self.prefill_tokens == sum(booking.prefill_tokens for booking in bookings)
        assert self.prompt_tokens == sum(booking.num_tokens for booking in bookings)
        assert self.output_tokens == sum(booking.num_output_tokens for booking in bookings)
        decoding = [booking for booking in bookings if booking.is_computed]
        assert self.num_decoding == len(decoding)
        assert self.decoding_prompt_tokens == sum(booking.num_tokens for booking in decoding)
        for unit in Unit:
            mine = [booking for booking in bookings if booking.unit is unit]
            num_unshared = sum(booking.num_unshared_blocks for booking in mine)
            assert self.tail_tokens[unit] == sum(booking.tail_tokens for booking in mine)
            self.blocks(unit).check([booking.chain for booking in mine], num_unshared)


class ActiveSequences:
    """The bookings of all workers. A request id has at most one at a time."""

    def __init__(self) -> None:
        self._workers: dict[Slot, WorkerBookings] = {}
        self._bookings: dict[str, Booking] = {}

    def __len__(self) -> int:
        return len(self._bookings)

    def add_worker(self, slot: Slot) -> None:
        assert slot not in self._workers
        self._workers[slot] = WorkerBookings()

    def remove_worker(self, slot: Slot) -> list[Booking]:
        """Forgets the worker with all that was booked on it, which is returned."""
        bookings = list(self._workers.pop(slot).bookings.values())
        for booking in bookings:
            del self._bookings[booking.request_id]
        return bookings

    def of_worker(self, slot: Slot) -> WorkerBookings:
        return self._workers[slot]

    def num_requests(self, slot: Slot) -> int:
        return len(self._workers[slot].bookings)

    def prefill_tokens(self, slot: Slot) -> int:
        """Booked and not released."""
        return self._workers[slot].prefill_tokens

    def num_blocks(self, slot: Slot, byte_ratio: float = 1.0) -> float:
        """Full blocks of active requests; `byte_ratio` is what a block of a byte prompt counts."""
        worker = self._workers[slot]
        return worker.token_blocks.num_blocks + worker.byte_blocks.num_blocks * byte_ratio

    def potential_tokens(
        self,
        slot: Slot,
        unit: Unit,
        chain: Sequence[BlockHash],
        num_unshared: int,
        tail_tokens: int = 0,
        *,
        block_tokens: int,
        byte_ratio: float = 1.0,
    ) -> float:
        """Tokens in all blocks of active requests, the last and partial ones too, once a prompt has joined
        them: its longest prefix that is active is there already. `block_tokens`: of the worker."""
        worker = self._workers[slot]
        num_token_blocks, num_byte_blocks = worker.token_blocks.num_blocks, worker.byte_blocks.num_blocks
        if unit is Unit.TOKENS:
            num_token_blocks += worker.token_blocks.num_additional(chain) + num_unshared
        else:
            num_byte_blocks += worker.byte_blocks.num_additional(chain) + num_unshared
        num_tokens = num_token_blocks * block_tokens + worker.tail_tokens[Unit.TOKENS]
        num_bytes = num_byte_blocks * block_tokens + worker.tail_tokens[Unit.BYTES]
        if unit is Unit.TOKENS:
            return num_tokens + tail_tokens + num_bytes * byte_ratio
        return num_tokens + (num_bytes + tail_tokens) * byte_ratio

    def shared_depth(self, slot: Slot, unit: Unit, chain: Sequence[BlockHash]) -> int:
        """Leading hashes of a prompt that active requests of the worker hold."""
        return self._workers[slot].blocks(unit).shared_depth(chain)

    def is_active(self, booking: Booking) -> bool:
        return self._bookings.get(booking.request_id) is booking

    def get(self, request_id: str, attempt: int | None = None) -> Booking | None:
        """The request's booking, if it has one and it is that attempt's (None: any)."""
        booking = self._bookings.get(request_id)
        return booking if booking and attempt in (None, booking.attempt) else None

    def book(self, booking: Booking) -> None:
        """Raises ValueError when the request is booked already, on whichever worker."""
        if booking.request_id in self._bookings:
            raise ValueError(f"request {booking.request_id} is booked already")
        worker = self._workers[booking.slot]
        self._bookings[booking.request_id] = worker.bookings[booking.request_id] = booking
        worker.prefill_tokens += booking.prefill_tokens
        worker.prompt_tokens += booking.num_tokens
        worker.tail_tokens[booking.unit] += booking.tail_tokens
        worker.blocks(booking.unit).add(booking.chain, booking.num_unshared_blocks)

    def release_prefill(self, booking: Booking) -> None:
        """Its prompt is computed, or is taken to be. Again: no effect."""
        worker = self._workers[booking.slot]
        worker.prefill_tokens -= booking.prefill_tokens
        booking.prefill_tokens = 0
        if not booking.is_computed:
            booking.is_computed = True
            worker.num_decoding += 1
            worker.decoding_prompt_tokens += booking.num_tokens

    def add_output(self, booking: Booking, num_tokens: int) -> None:
        booking.num_output_tokens += num_tokens
        self._workers[booking.slot].output_tokens += num_tokens

    def recut(self, slot: Slot, former_tokens: int, block_tokens: int) -> None:
        """The worker's blocks are not of the size that was believed. What is booked on it counts in its real
        ones until it ends, shared with nothing and expecting nothing: it has no hashes of those."""
        worker = self._workers[slot]
        for booking in worker.bookings.values():
            blocks = worker.blocks(booking.unit)
            blocks.remove(booking.chain, booking.num_unshared_blocks)
            num_blocks = COVERED[booking.unit][len(booking.chain)] + booking.num_unshared_blocks
            num_tokens, former_tail = num_blocks * former_tokens + booking.tail_tokens, booking.tail_tokens
            booking.chain = ()
            booking.num_unshared_blocks, booking.tail_tokens = divmod(num_tokens, block_tokens)
            worker.tail_tokens[booking.unit] += booking.tail_tokens - former_tail
            booking.expectation = Expectation(num_tokens=booking.expectation.num_tokens)
            blocks.add(booking.chain, booking.num_unshared_blocks)

    def free(self, booking: Booking) -> None:
        """Ends an active booking."""
        worker = self._workers[booking.slot]
        del self._bookings[booking.request_id], worker.bookings[booking.request_id]
        worker.prefill_tokens -= booking.prefill_tokens
        worker.prompt_tokens -= booking.num_tokens
        worker.output_tokens -= booking.num_output_tokens
        if booking.is_computed:
            worker.num_decoding -= 1
            worker.decoding_prompt_tokens -= booking.num_tokens
        worker.tail_tokens[booking.unit] -= booking.tail_tokens
        worker.blocks(booking.unit).remove(booking.chain, booking.num_unshared_blocks)

    def check(self) -> None:
        """Asserts every sum against the bookings themselves."""
        for worker in self._workers.values():
            worker.check()
        assert sum(len(worker.bookings) for worker in self._workers.values()) == len(self._bookings)
        for slot, worker in self._workers.items():
            for request_id, booking in worker.bookings.items():
                assert self._bookings[request_id] is booking
                assert booking.slot == slot
