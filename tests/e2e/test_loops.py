"""Gateways as workers of gateways: one behind another is served, one behind itself is noticed."""

from __future__ import annotations

from loadgen.mock_worker import MockFleet
from router.config import WorkerConfig
from router.limits import GATEWAYS_IN_A_ROW
from tests.support.serving import FAST, row_of, serving, without_events
from tests.support.waiting import eventually

BODY = {"model": "mock", "prompt": "p", "max_tokens": 1}


async def test_a_gateway_behind_a_gateway_is_a_worker_like_others() -> None:
    async with MockFleet(1, engine=FAST) as fleet, serving(without_events(fleet.workers)) as inner:
        behind = WorkerConfig(url=inner.url(""), name="w0")
        async with serving([behind]) as outer:
            worker, answer = await outer.complete("some words")
            assert worker == "w0"
            assert answer["usage"]["completion_tokens"] == 2


async def test_a_request_that_comes_back_is_answered_with_508() -> None:
    """Over the real round: a gateway that is its own second worker sends itself every other request."""
    async with MockFleet(1, engine=FAST) as fleet:
        workers = without_events(fleet.workers)
        async with serving(workers, policy="round_robin") as client:
            status, _ = await client.admin("/workers", "POST", {"url": client.url(""), "name": "itself"})
            assert status in (201, 202)
            await eventually(
                lambda: row_of(client.gateway, "itself").get("state") == "healthy",
                what="it is its own worker",
            )
            answers = [await client.post("/v1/completions", BODY) for _ in range(4)]
            assert sorted(status for status, *_ in answers) == [200, 200, 508, 508]
            looped = next(answer for status, answer, _ in answers if status == 508)
            assert looped["error"]["code"] == "loop_detected"
            assert "leads to itself" in looped["error"]["message"]


async def test_requests_that_passed_many_gateways_go_no_further() -> None:
    async with MockFleet(1, engine=FAST) as fleet, serving(without_events(fleet.workers)) as client:
        for num_passed, expected in ((GATEWAYS_IN_A_ROW - 1, 200), (GATEWAYS_IN_A_ROW, 508)):
            passed = ", ".join(f"gateway{i}" for i in range(num_passed))
            status, _, _ = await client.post("/v1/completions", BODY, x_kvgate_via=passed)
            assert status == expected
