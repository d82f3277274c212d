"""Where a prompt is computed, at every edge of the rule, over real sockets, with pools of both engines."""

from __future__ import annotations

import pytest

from tests.support.pools import pools, prompt_of

ENGINES = [("vllm", 0), ("sglang", 1)]
"""SGLang's decode workers compute no prompts: there a whole worker does it."""


async def computed_at(engine, num_whole, *, prompt, cached):
    """("remote" or "local", why) of a prompt of so many tokens, of which the decode worker holds so many."""
    async with pools(engine, num_whole=num_whole) as fleet:
        if cached:
            await fleet.warm(fleet.decode[0], prompt_of(cached))
        reply = await fleet.ask(prompt_of(prompt))
        assert reply.status == 200
        assert reply.json["usage"]["prompt_tokens"] == prompt
        verdict = "remote" if reply.prefill_worker else "local"
        assert reply.prefill_worker in (None, "p0")
        assert reply.worker == ("w0" if engine == "sglang" and verdict == "local" else "d0")
        (reason,) = (
            sample.labels["reason"]
            for family in fleet.client.gateway.metrics.registry.collect()
            for sample in family.samples
            if sample.name == "kvgate_disagg_decisions_total" and sample.value == 1
        )
        assert fleet.decisions(prefill=verdict, reason=reason) == 1
        assert len(fleet.prefill[0].received) == (verdict == "remote")
        return verdict, reason


@pytest.mark.parametrize(("engine", "num_whole"), ENGINES)
@pytest.mark.parametrize(
    ("prompt", "verdict", "reason"),
    [(1600 + 2047, "local", "well_cached"), (1600 + 2048, "remote", "long_prompt")],
)
async def test_2048_tokens_that_are_not_cached_are_too_many(engine, num_whole, prompt, verdict, reason):
    assert await computed_at(engine, num_whole, prompt=prompt, cached=1600) == (verdict, reason)


@pytest.mark.parametrize(("engine", "num_whole"), ENGINES)
@pytest.mark.parametrize(
    ("prompt", "verdict", "reason"),
    [
        (1599, "local", "well_cached"),  # 1119 of them: 0.6998
        (1600, "remote", "little_cached"),  # 1120 of them: 0.7
        (1601, "remote", "little_cached"),  # 1121 of them: 0.7002
    ],
)
async def test_seven_tenths_that_are_not_cached_are_too_many(engine, num_whole, prompt, verdict, reason):
    assert await computed_at(engine, num_whole, prompt=prompt, cached=480) == (verdict, reason)


@pytest.mark.parametrize(("prompt", "remote"), [(1000, True), (999, False)])
async def test_thresholds_of_ones_own(prompt, remote):
    """Of 1000 tokens 400 are cached: six tenths are not."""
    async with pools(disagg_ratio=0.6, disagg_min_tokens=5000) as fleet:
        await fleet.warm(fleet.decode[0], prompt_of(400))
        reply = await fleet.ask(prompt_of(prompt))
        assert (reply.prefill_worker is not None) == remote


@pytest.mark.parametrize(("engine", "num_whole"), ENGINES)
@pytest.mark.parametrize("prompt", [2, 40, 2047])
async def test_of_a_prompt_of_which_nothing_is_cached_all_is_computed_remotely(engine, num_whole, prompt):
    """However short it is: all of it is more than seven tenths."""
    async with pools(engine, num_whole=num_whole) as fleet:
        reply = await fleet.ask(prompt_of(prompt))
        assert reply.status == 200
        if reply.worker == "d0":
            assert reply.prefill_worker == "p0"
            assert fleet.decisions(prefill="remote", reason="little_cached") == 1
        else:
            assert reply.worker == "w0"


@pytest.mark.parametrize(("engine", "num_whole"), ENGINES)
@pytest.mark.parametrize("prompt", [32, 1600, 4800])
async def test_a_prompt_that_is_cached_whole_stays(engine, num_whole, prompt):
    assert await computed_at(engine, num_whole, prompt=prompt, cached=prompt) == ("local", "well_cached")


@pytest.mark.parametrize(
    ("mode", "cached", "verdict", "reason"),
    [("always", True, "remote", "always"), ("never", False, "local", "never")],
)
async def test_a_mode_that_does_not_look(mode, cached, verdict, reason):
    async with pools(disagg=mode) as fleet:
        if cached:
            await fleet.warm(fleet.decode[0], prompt_of(320))
        await fleet.ask(prompt_of(320))
        assert fleet.decisions(prefill=verdict, reason=reason) == 1


async def test_sglang_without_a_whole_worker_always_hands_over():
    async with pools("sglang") as fleet:
        await fleet.warm(fleet.decode[0], prompt_of(320))
        reply = await fleet.ask(prompt_of(320))
        assert (reply.worker, reply.prefill_worker) == ("d0", "p0")
        assert fleet.decisions(prefill="remote", reason="cannot_prefill") == 1


async def test_conversations_are_handed_over_once():
    """The first turn is; those that follow are cached where they were decoded."""
    async with pools() as fleet:
        prompt = prompt_of(800)
        for turn in range(4):
            reply = await fleet.ask(prompt, max_tokens=16)
            assert (reply.prefill_worker is not None) == (turn == 0)
            prompt += reply.json["choices"][0]["text"] + " and so on"
            await fleet.settled()
        assert fleet.decode[0].stats()["transferred_tokens"] == 800
