"""Cases against running gateways: what is sent, and what must hold whatever was sent.

Each lane is a gateway between one raw client and one raw worker, over real sockets. Inputs that bring an
outcome not seen before join the corpus, so that later mutations start from them.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from router.errors import WorkerTimeout
from tests.fuzz.corpus import ANSWERS, REQUESTS
from tests.fuzz.mutation import mutated, pieces
from tests.fuzz.reference import Answer, Doubt, Request, read_answer, read_head, read_requests
from tests.support.raw_worker import RawWorker, WorkerSide, json_answer
from tests.support.relay import Gateway, gateway, get, post
from tests.support.waiting import eventually

LIMITS = {
    "head_seconds": 0.2,
    "body_silence_seconds": 0.2,
    "linger_seconds": 0.2,
    "first_byte_seconds": 0.2,
    "idle_seconds": 0.2,
    "body_bytes": 100_000,
}
HANG_SECONDS = 10.0
"""The slowest cases end at a limit; on a busy machine some time after it."""
NUM_LANES = 16
"""Some wait for a limit while others work."""
CORPUS_MAX = 2_000

LAST = post(b'{"prompt":"last"}', extra="Connection: close\r\n")
SEEN_LAST = Request(b"POST", b"/v1/completions", b'{"prompt":"last"}')
GOOD = b'{"good":true}'
ASKED = "/version?fuzz"
HOP_BY_HOP = {b"connection", b"transfer-encoding", b"te", b"trailer", b"upgrade", b"keep-alive", b"expect"}
SWITCH = {(b"connection", b"upgrade"), (b"upgrade", b"websocket")}


@dataclass
class Lane:
    """A gateway, its worker and what they reported."""

    running: Gateway
    worker: RawWorker
    answer: list[bytes] = field(default_factory=list)
    """Pieces of the worker's answer to ASKED."""
    closes: bool = False
    """The worker closes behind them."""

    async def at_rest(self) -> None:
        """No crash, no booking, no body held, no connection but the pool's."""
        await self.running.at_rest()
        assert self.running.counted("kvgate_errors_total", kind="crashed") == 0, (
            "a request failed by a defect"
        )
        pool = self.running.proxy.upstream
        await eventually(lambda: self.worker.num_open <= pool.num_idle, what="no stray worker connection")

    def seen(self) -> list[Request]:
        """What reached the worker since the last call, each judged to be sound."""
        recorded, self.worker.requests = self.worker.requests, []
        return [as_seen(request.head, request.body) for request in recorded]


def as_seen(raw_head: bytes, body: bytes) -> Request:
    head = read_head(raw_head, 0)
    method, target, version = head.first_line.split(b" ")
    assert version == b"HTTP/1.1"
    assert head.end == len(raw_head)
    of_one_hop = {(name, value.lower()) for name, value in head.headers if name in HOP_BY_HOP}
    is_handshake = method == b"GET" and not body and not head.values(b"content-length")
    assert not of_one_hop or (is_handshake and of_one_hop == SWITCH), f"headers of one hop: {of_one_hop}"
    assert len(head.values(b"host")) == 1
    assert head.values(b"content-length") in ([], [b"%d" % len(body)])
    return Request(method, target, body)


Outcome = tuple[object, ...]
"""What makes one case different from another: kept small, so that few are new."""


async def exchange(lane: Lane, written: list[bytes]) -> tuple[bytes, bool]:
    """What came back until the gateway closed; True when it closed in order and not with a reset."""
    async with lane.running.client() as client:
        received = bytearray()
        try:
            async with asyncio.timeout(HANG_SECONDS):
                writing = asyncio.ensure_future(write(client.writer, written))
                while data := await client.reader.read(1 << 16):
                    received += data
        except ConnectionError:
            return bytes(received), False
        except TimeoutError:
            raise AssertionError("it hangs") from None
        finally:
            writing.cancel()
        return bytes(received), True


async def write(writer: asyncio.StreamWriter, written: list[bytes]) -> None:
    for piece in written:
        writer.write(piece)
        await asyncio.sleep(0)


async def request_case(lane: Lane, rng: random.Random, data: bytes) -> Outcome:
    """A client that sends anything: the worker sees requests that were sent, in order, and nothing else."""
    received, _ = await exchange(lane, pieces(rng, data + LAST))
    seen, sent = lane.seen(), read_requests(data + LAST)
    rest = iter(sent)
    assert all(request in rest for request in seen), f"the worker saw {seen}, sent was {sent}"
    statuses = [answer.status for answer in read_own_answers(received, sent)]
    return ("request", len(seen), tuple(statuses), reason_of(received))


def read_own_answers(received: bytes, sent: list[Request]) -> list[Answer]:
    """Answers are whole, one for each request and perhaps one refusal; nothing stands between them."""
    answers: list[Answer] = []
    methods = [request.method for request in sent]
    at = 0
    while at < len(received):
        method = methods[len(answers)] if len(answers) < len(methods) else b"POST"
        try:
            answer, end = read_answer(received, at, method)
            if method == b"HEAD" and (b"connection", b"close") in answer.headers and end < len(received):
                # A refusal of what was not understood so far as to know its method.
                answer, end = read_answer(received, at, b"POST")
                assert end == len(received), "more than a refusal"
        except Doubt:
            raise AssertionError(f"no answer: {received[at:]!r}") from None
        answers.append(answer)
        at = end
    assert len(answers) <= len(sent) + 1, "more answers than requests"
    return answers


def reason_of(received: bytes) -> bytes:
    """What the last refusal says: llhttp has many reasons, and each is a path of its own."""
    return received.rpartition(b'"message":"')[2].partition(b'"')[0][:60] if b'"error"' in received else b""


async def answer_case(lane: Lane, rng: random.Random, data: bytes) -> Outcome:
    """A worker that answers anything: the client gets that answer whole, or sees that it is not; and the next
    answer on its connection is its own."""
    lane.answer, lane.closes = pieces(rng, data), rng.random() < 0.5
    method = rng.choice((b"GET", b"GET", b"GET", b"HEAD"))
    version = rng.choice((b"1.1", b"1.1", b"1.0"))
    question = get(ASKED, method=method.decode()).replace(b"HTTP/1.1", b"HTTP/" + version)
    received, in_order = await exchange(lane, [question, LAST])
    kinds = judge(received, in_order, data, method)
    seen = lane.seen()
    asked = Request(method, ASKED.encode(), b"")
    expected = [[asked], [asked, SEEN_LAST], [asked, asked], [asked, asked, SEEN_LAST]]
    assert seen in expected or not received, f"the worker saw {seen}"
    return ("answer", *kinds, reason_of(received))


def judge(received: bytes, in_order: bool, data: bytes, method: bytes) -> Outcome:
    try:
        first, at = read_answer(received, 0, method)
    except Doubt:  # cut short, which the client can tell
        return ("cut",)
    headers = dict(first.headers)
    if at < len(received):
        second, end = read_answer(received, at, b"POST")
        is_own = (second.status, second.body) == (200, GOOD) or second.status == WorkerTimeout.status
        assert is_own, f"the next answer is another's: {received!r}"
        assert end == len(received), f"bytes behind the last answer: {received!r}"
    if b"x-kvgate-worker" not in headers:
        assert first.status >= 500, "an answer that is nobody's"
        return ("refused", first.status)
    if b'data: {"error":{' in first.body and b"x-kvgate-worker" in headers:
        return ("broke", first.status)
    has_end = b"content-length" in headers or b"transfer-encoding" in headers
    if not in_order and not has_end:
        return ("reset",)
    try:
        own, _ = read_answer(data, 0, method)
    except Doubt:
        raise AssertionError(f"passed as whole: {first}") from None
    assert (first.status, first.body) == (own.status, own.body), (
        f"the worker said {own}, the client got {first}"
    )
    return ("whole", first.status, has_end)


Case = Callable[[Lane, random.Random, bytes], Awaitable[Outcome]]
CASES: tuple[Case, ...] = (request_case, answer_case)


@dataclass
class Campaign:
    """Lanes of a seed, each with a generator and corpora of its own. `outcomes`: how many cases ended how."""

    seed: int
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    """What was broken, by which bytes; a lane ends with its first one."""
    _defects: list[dict[str, Any]] = field(default_factory=list)

    async def run(self, goes_on: Callable[[int], bool]) -> None:
        """As long as `goes_on(number of the lane's next case)`."""
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self._defects.append(context))
        async with asyncio.TaskGroup() as lanes:
            for number in range(NUM_LANES):
                lanes.create_task(self._run_lane(number, goes_on))

    async def _run_lane(self, number: int, goes_on: Callable[[int], bool]) -> None:
        rng = random.Random(f"{self.seed}/{number}")
        corpora = [list(REQUESTS), list(ANSWERS)]
        outcomes: Counter[Outcome] = Counter()
        case = 0
        async with open_lane("kv" if number % 2 else "round_robin") as lane:
            while goes_on(case):
                kind = rng.randrange(len(CASES))
                data = mutated(rng, corpora[kind])
                try:
                    outcome = await self._run_case(CASES[kind], lane, rng, data)
                except Exception as error:
                    name = f"{CASES[kind].__name__}, lane {number}, case {case}"
                    self.failures.append(f"{name}: {error!r}\n  data: {data!r}")
                    return
                if outcome not in outcomes and len(corpora[kind]) < CORPUS_MAX:
                    corpora[kind].append(data)
                outcomes[outcome] += 1
                case += 1
        self.outcomes += outcomes

    async def _run_case(self, case: Case, lane: Lane, rng: random.Random, data: bytes) -> Outcome:
        outcome = await case(lane, rng, data)
        await lane.at_rest()
        assert not self._defects, self._defects
        return outcome


@contextlib.asynccontextmanager
async def open_lane(policy: str) -> AsyncIterator[Lane]:
    """`kv` parses bodies, `round_robin` does not."""

    async def script(side: WorkerSide) -> None:
        if b" %b " % ASKED.encode() not in side.request.request_line:
            await side.send(json_answer(GOOD))
            return
        for piece in lane.answer:
            if not side.writer.is_closing():
                side.writer.write(piece)
            await asyncio.sleep(0)
        if lane.closes:
            side.close()

    async with RawWorker(script) as worker, gateway(worker, policy=policy, **LIMITS) as running:
        lane = Lane(running, worker)
        yield lane
