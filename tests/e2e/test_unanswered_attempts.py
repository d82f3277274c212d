"""What a worker did not compute it is not believed to hold, whatever kept it from computing."""

from __future__ import annotations

import pytest

from indexer.blocks import HashSpace, Unit
from policies.types import RoutingRequest
from router.config import Settings
from router.core.outcome import Outcome
from router.core.prompt import Prompt
from tests.support.raw_worker import RawWorker, WorkerSide, answering, json_answer
from tests.support.relay import gateway, post

FOUR_BLOCKS = Prompt(64, Unit.TOKENS, {HashSpace("m", 16): [1, 2, 3, 4]}, exact=True)
REFUSAL = b"HTTP/1.1 %d Refused\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


class SamePrompt:
    """A token source for which every request has the same prompt."""

    async def prompt(self, *_: object) -> Prompt:
        return FOUR_BLOCKS


async def num_believed(worker: RawWorker) -> tuple[int, int]:
    """The status of one answer, and how many blocks the worker is believed to hold after it."""
    async with gateway(worker, settings=Settings(policy="kv"), tokens=SamePrompt()) as running:
        answer = await running.ask(post())
        await running.at_rest()
        return answer.status, running.core.worker(worker.id).num_predicted_blocks


async def test_a_prompt_that_was_answered_is_believed_to_be_there() -> None:
    async with RawWorker(answering(json_answer())) as worker:
        assert await num_believed(worker) == (200, 4)


@pytest.mark.parametrize("status", [400, 429, 500, 503])
async def test_a_prompt_that_was_refused_is_not(status: int) -> None:
    async with RawWorker(answering(REFUSAL % status)) as worker:
        assert await num_believed(worker) == (status, 0)


async def test_nor_is_one_whose_worker_closed_without_an_answer() -> None:
    async def closing(side: WorkerSide) -> None:
        side.close()

    async with RawWorker(closing) as worker:
        assert await num_believed(worker) == (502, 0)


async def test_what_a_choice_gave_up_of_another_s_cache_is_counted() -> None:
    async with (
        RawWorker(answering(json_answer())) as first,
        RawWorker(answering(json_answer())) as second,
        gateway(first, second, settings=Settings(policy="kv"), tokens=SamePrompt()) as running,
    ):
        holder = (await running.ask(post())).value("x-kvgate-worker")
        other = ({first.id, second.id} - {holder}).pop()
        assert running.counted("kvgate_overlap_lost_tokens_total") == 0
        long_prompt = RoutingRequest(id="long", model="m", num_prompt_tokens=10_000)
        running.core.route(long_prompt, None, now=0.0, exclude={other})
        assert (await running.ask(post())).value("x-kvgate-worker") == other
        running.core.finish("long", Outcome.DONE, now=0.0)
        assert running.counted("kvgate_overlap_lost_tokens_total", worker=other) == 64
        assert running.counted("kvgate_overlap_lost_tokens_total") == 64
