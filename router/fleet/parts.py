"""What is said of a fleet whose workers do parts of a request: of one worker when it joins, and of the
workers of a model together.

What the parts mean for a request is decided in `router.core.pairing`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from policies.types import Role, Worker
from router.discovery import WorkerSpec
from router.worker_address import WorkerAddress


def describe_part(spec: WorkerSpec, worker: Worker) -> str:
    """For the line of a worker that joins; "" for a whole one that is meant as one."""
    contradiction = _contradiction(spec, worker)
    if worker.role is Role.BOTH:
        return f"whole worker{contradiction}" if contradiction else ""
    transfer = worker.transfer
    if transfer is None:
        how = "how this engine hands KV over is not known, so it gets no prompts"
        if worker.role is Role.DECODE:
            how = "how KV reaches this engine is not known, so it computes its prompts itself"
        return f"{worker.role} worker, but {how}{contradiction}"
    verb = "hands over" if worker.role is Role.PREFILL else "receives"
    told = "" if worker.engine == "sglang" else " (as configured: the server does not tell)"
    place = ""
    if worker.role is Role.PREFILL and transfer.port is not None and transfer.protocol != "nixl":
        host = transfer.host or WorkerAddress.parse(worker.url).bracketed_host
        place = f" at {host}:{transfer.port}"
    return f"{worker.role} worker, {verb} by {transfer.protocol}{place}{told}{contradiction}"


def contradicts(spec: WorkerSpec, worker: Worker) -> bool:
    """Whether its server says that it does another part than was configured."""
    return spec.role not in (Role.BOTH, worker.role)


def _contradiction(spec: WorkerSpec, worker: Worker) -> str:
    if not contradicts(spec, worker):
        return ""
    return f", by its own word: it was configured as {spec.role}, but started otherwise"


@dataclass(frozen=True, slots=True)
class Note:
    """Of one model's workers together. `is_warning`: something is configured that does nothing."""

    text: str
    is_warning: bool = False


def fleet_notes(workers: Sequence[Worker]) -> Iterator[Note]:
    """What holds of the fleet as it is; nothing for models without pools."""
    for model in sorted({worker.base_model for worker in workers}):
        of_model = [worker for worker in workers if worker.base_model == model]
        if any(worker.role is not Role.BOTH for worker in of_model):
            yield from _notes_of_model(model, of_model)


def _notes_of_model(model: str, workers: Sequence[Worker]) -> Iterator[Note]:
    pools = {role: [worker for worker in workers if worker.role is role] for role in Role}
    prefill, decode, whole = pools[Role.PREFILL], pools[Role.DECODE], pools[Role.BOTH]
    counts = f"{len(prefill)} prefill, {len(decode)} decode, {len(whole)} whole"
    yield Note(f"workers of {model or 'an unnamed model'}: {counts}")
    yield from _without_counterpart(prefill, decode)
    helpless = [worker for worker in decode if not worker.prefills_alone]
    if not helpless:
        return
    if not any(_protocol(worker) == "sglang" for worker in prefill):
        what = "decode servers of SGLang compute no prompts, and no prefill worker hands over to them"
        yield Note(f"{_names(helpless)}: {what}: they serve nothing", is_warning=True)
    elif not whole:
        what = "decode servers of SGLang compute no prompts, and there is no whole worker"
        yield Note(f"{_names(helpless)}: {what}: every request is handed over, whatever --disagg says")


def _without_counterpart(prefill: Sequence[Worker], decode: Sequence[Worker]) -> Iterator[Note]:
    received = {_protocol(worker) for worker in decode}
    idle = [worker for worker in prefill if _protocol(worker) not in received]
    if idle:
        protocols = ", ".join(sorted({_protocol(worker) or "no known protocol" for worker in idle}))
        what = f"no decode worker of their model receives by {protocols}"
        yield Note(f"{_names(idle)}: {what}: these prefill workers get no prompts", is_warning=True)


def _protocol(worker: Worker) -> str | None:
    return worker.transfer.protocol if worker.transfer is not None else None


def _names(workers: Sequence[Worker]) -> str:
    return ", ".join(worker.id for worker in workers)
