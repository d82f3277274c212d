"""Mooncake's bootstrap servers: which engine is behind a prefill worker. From vLLM 0.32's sources; not
run."""

from __future__ import annotations

import msgspec

from policies.types import Worker, WorkerId
from router.engines.http import CallFailed, WorkerHttp
from router.engines.limits import BOOTSTRAP_BYTES, ENGINE_IDS_KEPT
from router.engines.sessions import WorkerSessions
from router.errors import WorkerUnavailable
from router.hand_over.base import transfer_host
from router.hand_over.mooncake import BOOTSTRAP_PORT


class _Engine(msgspec.Struct):
    engine_id: str


class BootstrapServers:
    """Each is asked once, and again after something has failed: an engine has another id after a restart."""

    def __init__(self, sessions: WorkerSessions) -> None:
        self._sessions = sessions
        self._ids: dict[WorkerId, str] = {}

    async def engine_id(self, worker: Worker) -> str:
        """Raises WorkerUnavailable."""
        if (known := self._ids.get(worker.id)) is not None:
            return known
        port = (worker.transfer.port if worker.transfer is not None else None) or BOOTSTRAP_PORT
        http = WorkerHttp(self._sessions, f"http://{transfer_host(worker)}:{port}")
        try:
            answer = await http.get("/query", BOOTSTRAP_BYTES)
            engines = msgspec.json.decode(answer.body, type=dict[str, _Engine]) if answer.is_success else {}
            engine_id = engines[str(worker.dp_rank or 0)].engine_id
        except (CallFailed, msgspec.DecodeError, UnicodeDecodeError, KeyError) as error:
            raise WorkerUnavailable(
                f"The bootstrap server of {worker.id} names no engine: {error}", code="bootstrap_failed"
            ) from None
        if len(self._ids) >= ENGINE_IDS_KEPT:
            self._ids.clear()
        self._ids[worker.id] = engine_id
        return engine_id

    def forget(self, worker_id: WorkerId) -> None:
        """No effect for one that was not asked."""
        self._ids.pop(worker_id, None)
