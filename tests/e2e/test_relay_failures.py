"""Workers that fail: in every phase, and what the client then sees."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from router.config import Settings
from tests.support.raw_worker import (
    END_OF_CHUNKS,
    STREAM_HEAD,
    RawWorker,
    Script,
    WorkerSide,
    answering,
    chunk,
    event,
    json_answer,
)
from tests.support.relay import Answer, Gateway, gateway, get, post
from tests.support.waiting import eventually

GOOD = answering(json_answer(b'{"good":true}'))


def error_of(body: bytes) -> dict[str, object]:
    error: dict[str, object] = orjson.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


async def dies_before_the_head(side: WorkerSide) -> None:
    side.close()


async def is_killed_before_the_head(side: WorkerSide) -> None:
    side.reset()


async def dies_after_the_head(side: WorkerSide) -> None:
    """As in prefill: uvicorn sends the head at once and the first chunk only when there is a token."""
    await side.send(STREAM_HEAD)
    side.close()


async def dies_after_the_size_of_a_chunk(side: WorkerSide) -> None:
    await side.send(STREAM_HEAD + b"1f\r\n")
    side.close()


async def answers_rubbish(side: WorkerSide) -> None:
    await side.send(b"220 smtp ready\r\n\r\n")


async def answers_a_blank_line_first(side: WorkerSide) -> None:
    await side.send(b"\r\n\r\n" + json_answer())


async def answers_two_lengths(side: WorkerSide) -> None:
    await side.send(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab")


async def answers_length_and_chunks(side: WorkerSide) -> None:
    await side.send(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n")


async def answers_an_unknown_coding(side: WorkerSide) -> None:
    await side.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n")


async def answers_with_the_coding_twice(side: WorkerSide) -> None:
    await side.send(STREAM_HEAD[:-2] + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n")


async def answers_more_than_it_said(side: WorkerSide) -> None:
    await side.send(json_answer(b"{}") + b"HTTP/1.1 200 OK\r\n\r\n")


async def answers_a_line_beyond_the_end(side: WorkerSide) -> None:
    await side.send(STREAM_HEAD + END_OF_CHUNKS + b"\r\n")


async def switches_protocols(side: WorkerSide) -> None:
    await side.send(b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n")


async def answers_an_endless_head(side: WorkerSide) -> None:
    await side.send(b"HTTP/1.1 200 OK\r\nx: " + b"y" * 400_000)
    await side.peer_left()


FAILURES: tuple[Script, ...] = (
    dies_before_the_head,
    is_killed_before_the_head,
    dies_after_the_head,
    dies_after_the_size_of_a_chunk,
    answers_rubbish,
    answers_a_blank_line_first,
    answers_two_lengths,
    answers_length_and_chunks,
    answers_an_unknown_coding,
    answers_with_the_coding_twice,
    answers_more_than_it_said,
    answers_a_line_beyond_the_end,
    switches_protocols,
    answers_an_endless_head,
)


@pytest.mark.parametrize("fails", FAILURES)
async def test_failure_before_the_first_body_byte_is_retried_elsewhere(fails: Script) -> None:
    async with RawWorker(fails) as bad, RawWorker(GOOD) as good, gateway(bad, good) as running:
        for _ in range(2):
            answer = await running.ask(post())
            assert (answer.status, answer.body) == (200, b'{"good":true}')
            assert answer.value("x-kvgate-worker") == good.id
        assert running.counted("kvgate_retries_total", worker=bad.id) == len(bad.requests) >= 1


@pytest.mark.parametrize("fails", FAILURES)
async def test_failure_of_the_only_worker_is_said(fails: Script) -> None:
    async with RawWorker(fails) as bad, gateway(bad) as running, running.client() as client:
        await client.send(post())
        answer = await client.answer()
        assert answer.status == 502
        assert error_of(answer.body)["code"] in ("worker_unavailable", "worker_protocol_error")
        assert answer.value("x-request-id")
        assert len(bad.requests) == 1
        assert running.proxy.upstream.num_idle == 0
        await client.send(get("/health"))
        assert (await client.answer()).status == 200


async def test_never_the_same_worker_and_never_more_than_the_retries() -> None:
    settings = Settings(policy="round_robin", max_retries=2)
    async with (
        RawWorker(dies_before_the_head) as a,
        RawWorker(dies_before_the_head) as b,
        RawWorker(dies_before_the_head) as c,
        RawWorker(dies_before_the_head) as d,
        gateway(a, b, c, d, settings=settings) as running,
    ):
        assert (await running.ask(post())).status == 502
        assert sorted(len(worker.requests) for worker in (a, b, c, d)) == [0, 1, 1, 1]


async def test_refused_connection_makes_a_worker_suspect() -> None:
    async with RawWorker(GOOD) as closed:
        pass
    async with RawWorker(GOOD) as good, gateway(closed, good) as running:
        for _ in range(4):
            assert (await running.ask(post())).status == 200
        assert running.fleet.suspected == [closed.id]
        assert running.counted("kvgate_retries_total", reason="connect_failed") == 1


async def test_all_workers_down() -> None:
    async with RawWorker(GOOD) as closed:
        pass
    async with gateway(closed) as running:
        answer = await running.ask(post())
        assert answer.status == 502
        assert error_of(answer.body)["code"] == "connect_failed"


async def test_no_workers_at_all() -> None:
    async with gateway() as running:
        answer = await running.ask(post())
        assert answer.status == 503
        assert error_of(answer.body)["code"] == "no_workers"


# Connections that the worker has closed in the meantime


async def test_closed_idle_connection_is_replaced_without_a_retry() -> None:
    async def script(side: WorkerSide) -> None:
        if side.num_requests == 2:
            side.reset()  # as if the request had crossed the worker's close
        else:
            await side.send(json_answer())

    async with RawWorker(script) as worker, gateway(worker) as running:
        for _ in range(2):
            assert (await running.ask(post())).status == 200
        assert len(worker.sides) == 2
        assert running.counted("kvgate_retries_total") == 0


async def test_burst_after_the_worker_closed_its_idle_connections() -> None:
    release = asyncio.Event()

    async def script(side: WorkerSide) -> None:
        await release.wait()
        await side.send(json_answer())

    async with RawWorker(script) as worker, gateway(worker) as running:

        async def burst() -> set[int]:
            release.clear()
            answers = [asyncio.ensure_future(running.ask(post())) for _ in range(50)]
            num_before = len(worker.requests)
            while len(worker.requests) < num_before + 50:
                await asyncio.sleep(0)
            release.set()
            return {answer.status for answer in await asyncio.gather(*answers)}

        assert await burst() == {200}
        for side in worker.sides:
            side.close()
        assert await burst() == {200}
        assert running.counted("kvgate_retries_total") == 0


async def test_bursts_while_the_worker_closes_idle_connections_see_no_error() -> None:
    """2,000 requests, and a worker that closes its connections whenever nothing comes for 2 ms: some are
    closed in the pool, some while the next request is on its way."""
    idle_seconds, num_closed = 0.002, 0

    async def script(side: WorkerSide) -> None:
        nonlocal num_closed
        await side.send(json_answer(side.request.body))
        num_answered = side.num_requests
        loop = asyncio.get_running_loop()

        def close_if_idle() -> None:
            nonlocal num_closed
            if side.num_requests == num_answered and not side.writer.is_closing():
                num_closed += 1
                side.close()

        loop.call_later(idle_seconds, close_if_idle)

    async def client(running: Gateway, name: int) -> None:
        async with running.client() as client:
            for number in range(20):
                body = b'{"prompt":"%d of %d"}' % (number, name)
                await client.send(post(body))
                answer = await client.answer()
                assert (answer.status, answer.body) == (200, body)

    async with RawWorker(script) as worker, gateway(worker) as running:
        for burst in range(4):
            await asyncio.gather(*(client(running, 25 * burst + n) for n in range(25)))
            await eventually(lambda: worker.num_open == 0, what="the worker has closed them all")
        assert num_closed > 50  # at the end of each burst alone nearly 25
        assert running.counted("kvgate_retries_total") == running.counted("kvgate_errors_total") == 0


async def test_bytes_that_nobody_asked_for_close_the_connection() -> None:
    answered = asyncio.Event()

    async def script(side: WorkerSide) -> None:
        await side.send(json_answer())
        await answered.wait()
        answered.clear()
        await side.send(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
        await side.peer_left()

    async with RawWorker(script) as worker, gateway(worker) as running:
        for _ in range(3):
            answer = await running.ask(post())
            assert (answer.status, answer.body) == (200, b'{"ok":true}')
            answered.set()
            await worker.sides[-1].gone.wait()
        assert len(worker.sides) == 3


# In the middle of an answer


async def cut_stream(running_script: Script, path: str = "/v1/chat/completions") -> tuple[Answer, float]:
    """The answer of a worker that fails in mid-stream, and how many error events were counted as placed."""
    async with RawWorker(running_script) as worker, gateway(worker) as running:
        answer = await running.ask(post(path=path))
        return answer, running.counted("kvgate_stream_errors_total", placed="true")


@pytest.mark.parametrize(("path", "is_done_said"), [("/v1/chat/completions", True), ("/invocations", False)])
async def test_stream_that_breaks_between_events_ends_with_an_error_event(
    path: str, is_done_said: bool
) -> None:
    async def script(side: WorkerSide) -> None:
        await side.send(STREAM_HEAD + chunk(event("a")) + chunk(event("b")))
        side.close()

    answer, num_placed = await cut_stream(script, path)
    assert answer.body.startswith(event("a") + event("b") + b"data: {")
    last = answer.body.removeprefix(event("a") + event("b"))
    assert last.endswith(b"data: [DONE]\n\n") is is_done_said
    assert error_of(last.partition(b"\n\n")[0].removeprefix(b"data: "))["code"] == "worker_unavailable"
    assert num_placed == 1


@pytest.mark.parametrize(
    "sent",
    [
        STREAM_HEAD + chunk(event("a"))[:-1],  # within a chunk's end
        STREAM_HEAD + chunk(event("a"))[:-4],  # within a chunk
        STREAM_HEAD + chunk(event("a")) + b"2",  # within the next chunk's size
        STREAM_HEAD + chunk(event("a")) + b"2a\r\n",  # behind it
        STREAM_HEAD + chunk(event("a")[:-1]),  # between chunks, within an event
        STREAM_HEAD.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n") + chunk(event("a")),
        json_answer(b"x" * 1000)[:-1],
    ],
)
async def test_answer_that_breaks_elsewhere_is_cut(sent: bytes) -> None:
    async def script(side: WorkerSide) -> None:
        await side.send(sent)
        side.close()

    async with RawWorker(script) as worker, gateway(worker) as running, running.client() as client:
        await client.send(post())
        with pytest.raises(asyncio.IncompleteReadError):
            await client.answer()
        assert running.counted("kvgate_stream_errors_total", placed="false") == 1
        assert running.counted("kvgate_requests_total", outcome="worker_failed") == 1


async def test_broken_answer_is_no_whole_one_to_an_http10_client() -> None:
    """There the end of the connection ends the body, so only a reset can tell."""

    async def script(side: WorkerSide) -> None:
        await side.send(STREAM_HEAD + chunk(event("a")))
        await released.wait()
        side.close()

    released = asyncio.Event()
    async with RawWorker(script) as worker, gateway(worker) as running, running.client() as client:
        await client.send(post().replace(b"HTTP/1.1", b"HTTP/1.0"))
        await client.reader.readuntil(event("a"))
        released.set()
        with pytest.raises(ConnectionResetError):
            await client.closed()


async def test_rubbish_in_mid_stream_is_cut() -> None:
    async def script(side: WorkerSide) -> None:
        await side.send(STREAM_HEAD + chunk(event("a")))
        await released.wait()
        await side.send(b"no chunk\r\n")
        await side.peer_left()

    released = asyncio.Event()
    async with RawWorker(script) as worker, gateway(worker) as running, running.client() as client:
        await client.send(post())
        await client.reader.readuntil(event("a"))
        released.set()
        assert b"worker_protocol_error" in await client.reader.readuntil(END_OF_CHUNKS)
        await worker.sides[0].gone.wait()


async def test_early_headers_are_sent_before_the_body_and_forbid_a_retry() -> None:
    async def script(side: WorkerSide) -> None:
        await side.send(STREAM_HEAD)
        await released.wait()
        side.close()

    released = asyncio.Event()
    settings = Settings(policy="round_robin", early_headers=True)
    async with (
        RawWorker(script) as one,
        RawWorker(script) as other,
        gateway(one, other, settings=settings) as running,
        running.client() as client,
    ):
        await client.send(post(path="/v1/chat/completions"))
        head = await client.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        released.set()
        assert b"worker_unavailable" in await client.reader.readuntil(END_OF_CHUNKS)
        assert len(one.requests) + len(other.requests) == 1


# Deadlines


async def never_answers(side: WorkerSide) -> None:
    await side.peer_left()


async def test_worker_that_says_nothing() -> None:
    async with RawWorker(never_answers) as worker, gateway(worker, first_byte_seconds=0.05) as running:
        answer = await running.ask(post())
        assert answer.status == 504
        assert error_of(answer.body)["code"] == "first_byte_timeout"
        await worker.sides[0].gone.wait()
        assert running.counted("kvgate_requests_total", outcome="timed_out") == 1


async def test_head_alone_does_not_count_as_a_first_byte() -> None:
    async def script(side: WorkerSide) -> None:
        await side.send(STREAM_HEAD)
        await side.peer_left()

    async with RawWorker(script) as worker, gateway(worker, first_byte_seconds=0.05) as running:
        assert (await running.ask(post())).status == 504


async def test_stream_that_falls_silent() -> None:
    async def script(side: WorkerSide) -> None:
        await side.send(STREAM_HEAD + chunk(event("a")))
        await side.peer_left()

    async with RawWorker(script) as worker, gateway(worker, idle_seconds=0.05) as running:
        answer = await running.ask(post(path="/v1/chat/completions"))
        assert b'"code":"idle_timeout"' in answer.body
        await worker.sides[0].gone.wait()


async def test_request_that_takes_too_long_in_all() -> None:
    async def script(side: WorkerSide) -> None:
        await side.send(STREAM_HEAD + chunk(event("a")))
        await side.peer_left()

    async with RawWorker(script) as worker, gateway(worker, request_seconds=0.1) as running:
        answer = await running.ask(post(path="/v1/chat/completions"))
        assert b'"code":"request_timeout"' in answer.body
