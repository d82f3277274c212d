"""Candidates from a few columns, the rest zeros: what the tests of policies write."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from policies.engine_time import PrefillTime, StepTime
from policies.types import Candidates, EngineTimes, RoutingRequest, ServedModel, Slot, Worker
from router.core.pools import Pool, hash_space_of

MODEL = "model"
PREFILL = PrefillTime(15.0, 0.05, 4.7e-7)
STEP = StepTime(15.0, 0.06, 4e-5)
REQUEST = RoutingRequest(id="r", model=MODEL)


def make_worker(worker_id: str, **fields) -> Worker:
    fields = {
        "url": f"http://{worker_id}:8000",
        "models": (ServedModel(MODEL),),
        "block_tokens": 16,
        **fields,
    }
    return Worker(id=worker_id, **fields)


def make_pool(members: Iterable[tuple[Worker, Slot]], *, block_tokens: int) -> Pool:
    """A pool of workers whose blocks are as they told."""
    return Pool.of(
        ((worker, slot, hash_space_of(worker)) for worker, slot in members), block_tokens=block_tokens
    )


def make_candidates(
    num: int,
    *,
    ids: Sequence[str] = (),
    prompt_blocks: float = 0.0,
    device: Sequence[float] = (),
    host: Sequence[float] = (),
    disk: Sequence[float] = (),
    prefill: Sequence[float] = (),
    decode: Sequence[float] = (),
    active: Sequence[int] = (),
    held: Sequence[int] = (),
    served_last_row: int | None = None,
    times: EngineTimes | None = None,
) -> Candidates:
    ids = ids or [f"w{number}" for number in range(num)]
    return Candidates(
        workers=[make_worker(worker_id) for worker_id in ids],
        slots=list(range(num)),
        block_tokens=16,
        prompt_blocks=prompt_blocks,
        device_overlap=device or [0.0] * num,
        host_overlap=host or [0.0] * num,
        disk_overlap=disk or [0.0] * num,
        active_prefill_blocks=prefill or [0.0] * num,
        potential_decode_blocks=decode or [0.0] * num,
        num_active_requests=active or [0] * num,
        num_held_blocks=held or [0] * num,
        served_last_row=served_last_row,
        times=times or make_times(num),
    )


def make_times(
    num: int,
    *,
    prefill: PrefillTime = PREFILL,
    step: StepTime = STEP,
    wait: Sequence[float] = (),
    decoding: Sequence[int] = (),
    decoding_tokens: Sequence[int] = (),
    resident: Sequence[int] = (),
    free: Sequence[float] = (),
    observed: Sequence[float] = (),
    output: float = 300.0,
    arrivals: float = 0.0008,
) -> EngineTimes:
    """Of equal workers; a 70B model on eight GPUs unless said otherwise."""
    return EngineTimes(
        prefill=[prefill] * num,
        step=[step] * num,
        wait_ms=wait or [0.0] * num,
        num_decoding=decoding or [0] * num,
        decoding_tokens=decoding_tokens or [0] * num,
        resident_tokens=resident or [0] * num,
        free_tokens=free or [math.inf] * num,
        observed_step_ms=observed or [0.0] * num,
        mean_output_tokens=output,
        arrivals_per_ms=arrivals,
        batched_tokens=8192,
    )
