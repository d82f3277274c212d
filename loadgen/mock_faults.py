"""The faults of a mock worker: what may be asked for, and what each does to it.

| fault            | what happens, until `clear`                                                            |
| ---------------- | -------------------------------------------------------------------------------------- |
| die              | every connection is reset, all ports are closed; `clear` starts a new incarnation      |
| restart          | die and come back at once: empty cache, event numbers from 0, new start time; with      |
|                  | `ranks` as many data-parallel ranks                                                    |
| hang             | connections are accepted, nothing is answered, the engine stands still                 |
| refuse           | 503 for everything                                                                     |
| internal_error   | the next `count` requests for text (all, without `count`) are answered with 500        |
| drop_events      | the next `count` event messages are lost (all, without `count`); replay still has them |
| error_mid_stream | a stream is cut after `after_tokens` tokens (default 1)                                |
| slow             | steps take `factor` times as long (default 10)                                         |
| misreport        | it says that its blocks have `block_size` tokens; nothing of it without `block_size`   |
| slow_transfer    | KV from it and to it takes `factor` times as long (default 10)                         |
| transfer_fails   | the next `count` prompts that it should receive are lost on the way                    |
| lease_expired    | the next `count` prompts that it computes for others are given up at once              |
| wrong_engine_id  | the next `count` times it says who it is, it is somebody else (vLLM)                   |
| drop_parameter   | the next `count` answers lack the member `parameter` of `kv_transfer_params`, or all   |
|                  | of them without `parameter` (NixlConnector)                                            |
| clear            | back to normal                                                                         |
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import msgspec

from loadgen.mock_api import ApiError
from loadgen.mock_hand_over import HandOverFaults


class FaultBody(msgspec.Struct, forbid_unknown_fields=True):
    """What is posted to `/mock/fault`."""

    fault: str
    worker: int | None = None
    count: int | None = None
    after_tokens: int = 1
    factor: float = 10.0
    block_size: int | None = None
    ranks: int | None = None
    parameter: str | None = None


class FaultyWorker(Protocol):
    """What a fault can do to a worker."""

    cut_after_tokens: int | None
    told_block_tokens: int | None
    refuses: bool
    hand_over_faults: HandOverFaults

    async def die(self, spare: asyncio.Transport | None) -> None: ...

    async def restart(self, spare: asyncio.Transport | None, num_ranks: int | None) -> None: ...

    def hang(self) -> None: ...

    def drop_events(self, count: int | None) -> None: ...

    def slow_down(self, factor: float) -> None: ...

    async def clear(self) -> None: ...


async def apply_fault(worker: FaultyWorker, body: FaultBody, spare: asyncio.Transport | None = None) -> None:
    """`spare`: the connection that asked for it, which a dying worker still answers. Raises ApiError 400 that
    names what is wrong."""
    check(body)
    if body.fault in _COUNTED:
        worker.hand_over_faults.left[body.fault] = body.count
        worker.hand_over_faults.dropped_parameter = body.parameter
        return
    await FAULTS[body.fault](worker, body, spare)


def check(body: FaultBody) -> None:
    """Raises ApiError 400 that names the field."""
    known = (*FAULTS, *_COUNTED)
    if body.fault not in known:
        message = f"unknown fault {body.fault!r}; known: {', '.join(known)}"
        raise ApiError(400, message, param="fault")
    for name in ("count", "after_tokens", "block_size", "ranks"):
        value = getattr(body, name)
        if value is not None and value < 1:
            raise ApiError(400, f"{name} must be at least 1, not {value}", param=name)
    if body.ranks is not None and body.ranks > RANKS_MAX:
        raise ApiError(400, f"ranks must be at most {RANKS_MAX}, not {body.ranks}", param="ranks")
    if not 0 < body.factor < float("inf"):
        raise ApiError(400, f"factor must be a number above 0, not {body.factor}", param="factor")


RANKS_MAX = 64
"""An engine and two sockets each."""


async def _die(worker: FaultyWorker, _body: FaultBody, spare: asyncio.Transport | None) -> None:
    await worker.die(spare)


async def _restart(worker: FaultyWorker, body: FaultBody, spare: asyncio.Transport | None) -> None:
    await worker.restart(spare, body.ranks)


async def _hang(worker: FaultyWorker, _body: FaultBody, _spare: asyncio.Transport | None) -> None:
    worker.hang()


async def _refuse(worker: FaultyWorker, _body: FaultBody, _spare: asyncio.Transport | None) -> None:
    worker.refuses = True


async def _drop_events(worker: FaultyWorker, body: FaultBody, _spare: asyncio.Transport | None) -> None:
    worker.drop_events(body.count)


async def _error_mid_stream(worker: FaultyWorker, body: FaultBody, _spare: asyncio.Transport | None) -> None:
    worker.cut_after_tokens = body.after_tokens


async def _slow(worker: FaultyWorker, body: FaultBody, _spare: asyncio.Transport | None) -> None:
    worker.slow_down(body.factor)


async def _misreport(worker: FaultyWorker, body: FaultBody, _spare: asyncio.Transport | None) -> None:
    worker.told_block_tokens = body.block_size


async def _slow_transfer(worker: FaultyWorker, body: FaultBody, _spare: asyncio.Transport | None) -> None:
    worker.hand_over_faults.slowness = body.factor


async def _clear(worker: FaultyWorker, _body: FaultBody, _spare: asyncio.Transport | None) -> None:
    await worker.clear()


FAULTS: Mapping[str, Callable[[FaultyWorker, FaultBody, asyncio.Transport | None], Awaitable[None]]] = {
    "die": _die,
    "restart": _restart,
    "hang": _hang,
    "refuse": _refuse,
    "drop_events": _drop_events,
    "error_mid_stream": _error_mid_stream,
    "slow": _slow,
    "misreport": _misreport,
    "slow_transfer": _slow_transfer,
    "clear": _clear,
}
_COUNTED = ("internal_error", "transfer_fails", "lease_expired", "wrong_engine_id", "drop_parameter")
"""They happen so many times, each where its name is taken from HandOverFaults."""
