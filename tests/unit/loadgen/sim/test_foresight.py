"""Forecasts against what the engine then takes."""

from __future__ import annotations

import random

import pytest

from loadgen.sequences import EngineSequence
from loadgen.sim.foresight import (
    first_token_seconds,
    handed_over_seconds,
    held_tokens,
    next_token_seconds,
    stall_seconds,
)
from loadgen.sim.worker import SimWorker
from loadgen.transfer import TransferModel
from tests.support.simulations import small_engine

CHAIN = [1, 2, 3, 4]
NETWORK = TransferModel(gbps=8.0, bytes_per_token=100_000, setup_ms=2.0)


def sequence(name, num_tokens, max_tokens, chain):
    return EngineSequence(
        id=name, num_prompt_tokens=num_tokens, max_tokens=max_tokens, block_tokens=64, hashes=chain
    )


class Driven:
    """A worker that is stepped by hand."""

    def __init__(self):
        self.worker = SimWorker("w", 0, small_engine(num_blocks=129, max_model_len=4096), random.Random(0))
        self.now = 0.0

    def add(self, *arguments):
        new = sequence(*arguments)
        self.worker.requests[new] = len(self.worker.requests)
        self.worker.engine.enqueue(new)
        return new

    def begin_step(self):
        ends_at = self.worker.engine.start_step(self.now)
        self.worker.is_idle = ends_at is None
        self.worker.step_ends_at = ends_at or 0.0
        return ends_at

    def end_step(self):
        self.now = self.worker.step_ends_at
        self.worker.is_idle = True
        output = self.worker.engine.finish_step()
        for finished in output.finished:
            del self.worker.requests[finished]
        return output.started

    def until_first_token(self, wanted):
        while True:
            if self.worker.is_idle:
                self.begin_step()
            if wanted in self.end_step():
                return self.now


def test_an_idle_worker_takes_what_its_engine_takes():
    driven = Driven()
    foreseen = first_token_seconds(driven.worker, 300, CHAIN, 0.0)
    assert driven.until_first_token(driven.add("a", 300, 2, CHAIN)) == pytest.approx(foreseen)


def test_what_is_held_is_not_computed_again():
    driven = Driven()
    driven.until_first_token(driven.add("a", 300, 1, CHAIN))
    assert held_tokens(driven.worker.engine, CHAIN) == 256
    began = driven.now
    foreseen = first_token_seconds(driven.worker, 300, CHAIN, began)
    assert driven.until_first_token(driven.add("b", 300, 2, CHAIN)) - began == pytest.approx(foreseen)


def test_behind_prompts_that_wait_and_in_the_middle_of_a_step():
    driven = Driven()
    driven.add("a", 700, 1, [10, 11, 12])
    driven.begin_step()
    driven.add("b", 200, 1, [20, 21])
    now = driven.worker.step_ends_at / 2
    foreseen = first_token_seconds(driven.worker, 300, CHAIN, now)
    assert driven.until_first_token(driven.add("c", 300, 1, CHAIN)) - now == pytest.approx(foreseen, rel=0.02)


def test_streams_slow_a_prompt_and_are_held_up_by_it():
    driven = Driven()
    assert stall_seconds(driven.worker, 300, CHAIN) == 0.0
    alone = first_token_seconds(driven.worker, 300, CHAIN, 0.0)
    for name in "ab":
        driven.until_first_token(driven.add(name, 200, 500, []))
    assert driven.worker.is_idle
    foreseen = first_token_seconds(driven.worker, 300, CHAIN, driven.now)
    began = driven.now
    assert foreseen > alone
    assert stall_seconds(driven.worker, 300, CHAIN) == pytest.approx(2 * 300 * 0.05 / 1000)
    assert driven.until_first_token(driven.add("c", 300, 2, CHAIN)) - began == pytest.approx(
        foreseen, rel=0.01
    )


def test_a_hand_over_is_the_prompt_the_transfer_and_a_step():
    prefill, decode = Driven().worker, Driven().worker
    foreseen = handed_over_seconds(prefill, decode, NETWORK, 300, CHAIN, 0.0)
    computed = first_token_seconds(prefill, 300, CHAIN, 0.0)
    assert foreseen == pytest.approx(computed + 0.032 + next_token_seconds(decode, 0.0))
    decode.port.free_at = computed + 1.0
    assert handed_over_seconds(prefill, decode, NETWORK, 300, CHAIN, 0.0) == pytest.approx(foreseen + 1.0)
