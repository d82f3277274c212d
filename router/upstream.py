"""The worker side: a pool of connections for every worker, and new ones as they are needed.

What happens on one connection lives in `worker_connection`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from weakref import WeakValueDictionary

from policies.types import Worker
from router.dialing import Dialer
from router.errors import WorkerConnectTimeout, WorkerUnavailable
from router.limits import RelayLimits
from router.tls import connect_failure
from router.worker_address import WorkerAddress
from router.worker_connection import WorkerConnection

Clock = Callable[[], float]


class WorkerPool:
    """Connections to one worker: idle ones are reused, last in first out; more are opened as needed."""

    __slots__ = (
        "__weakref__", "_address", "_connecting", "_dialer", "_idle", "_limits", "_now", "has_key", "lines",
        "names_rank",
    )  # fmt: skip

    def __init__(
        self,
        address: WorkerAddress,
        key: str | None,
        rank: int | None,
        dialer: Dialer,
        limits: RelayLimits,
        clock: Clock,
    ) -> None:
        self._address = address
        self._dialer = dialer
        self.lines = b"host: %b\r\n" % address.authority.encode()
        """Header lines of every request to this worker."""
        self.has_key = key is not None
        if key is not None:
            self.lines += b"authorization: Bearer %b\r\n" % key.encode()
        self.names_rank = rank is not None
        if rank is not None:
            self.lines += b"x-data-parallel-rank: %d\r\n" % rank
        self._limits = limits
        self._now = clock
        self._idle: list[WorkerConnection] = []
        self._connecting: dict[asyncio.Task[object], float] = {}
        """Tasks that wait for a connection, and until when."""

    def take_idle(self) -> WorkerConnection | None:
        """One that is probably alive, or None."""
        fresh_since = self._now() - self._limits.worker_idle_seconds
        while self._idle:
            connection = self._idle.pop()
            if connection.idle_since >= fresh_since and not connection.transport.is_closing():
                return connection
            connection.transport.close()
        return None

    async def connect(self) -> WorkerConnection:
        """A new connection. Raises WorkerUnavailable or WorkerConnectTimeout.

        Its time is over when `check` finds so: a timer of its own would cost as much as the rest of this.
        """
        task = asyncio.current_task()
        assert task is not None
        self._connecting[task] = self._now() + self._limits.connect_seconds
        try:
            return await self._dialer.dial(self._address, lambda: WorkerConnection(self.put))
        except asyncio.CancelledError:
            if task in self._connecting or task.uncancel() > 0:
                raise  # the client has left
            raise WorkerConnectTimeout("Connecting to the worker took too long") from None
        except OSError as error:
            raise WorkerUnavailable(
                f"Cannot connect to the worker: {connect_failure(error)}", code="connect_failed"
            ) from None
        finally:
            self._connecting.pop(task, None)

    def put(self, connection: WorkerConnection) -> None:
        connection.idle_since = self._now()
        self._idle.append(connection)

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    def check(self, now: float) -> None:
        """Called now and then: enforce what has a deadline."""
        self.close_stale(now)
        for task in [task for task, deadline in self._connecting.items() if now >= deadline]:
            del self._connecting[task]
            task.cancel()

    def close_stale(self, now: float) -> None:
        """Close what has been idle too long, and let go of what died meanwhile; the oldest stand first."""
        fresh_since = now - self._limits.worker_idle_seconds
        num_stale = 0
        for connection in self._idle:
            if connection.idle_since >= fresh_since:
                break
            num_stale += 1
        stale, self._idle = self._idle[:num_stale], self._idle[num_stale:]
        for connection in stale:
            connection.transport.close()


class Upstream:
    """A pool for every URL, key and data-parallel rank: requests to a worker begin with the same lines.
    `key_of` gives the API key to show to a worker, or None: one may leave and come back with a new one.
    """

    def __init__(
        self, limits: RelayLimits, clock: Clock, dialer: Dialer, key_of: Callable[[Worker], str | None]
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._dialer = dialer
        self._key_of = key_of
        # A pool lives as long as a request or an open connection holds it: what it opened comes back to it,
        # also what is still connecting, and pools of workers that are gone vanish.
        self._pools: WeakValueDictionary[tuple[str, str | None, int | None], WorkerPool] = (
            WeakValueDictionary()
        )

    def pool(self, worker: Worker) -> WorkerPool:
        key, rank = self._key_of(worker), worker.dp_rank
        pool = self._pools.get((worker.url, key, rank))
        if pool is None:
            address = WorkerAddress.parse(worker.url)
            pool = WorkerPool(address, key, rank, self._dialer, self._limits, self._clock)
            self._pools[worker.url, key, rank] = pool
        return pool

    @property
    def num_idle(self) -> int:
        """Connections that wait for their next request."""
        return sum(pool.num_idle for pool in list(self._pools.values()))

    def check(self, now: float) -> None:
        """Close idle connections before the workers do, and give up connecting where it takes too long."""
        for pool in list(self._pools.values()):
            pool.check(now)

    def close(self) -> None:
        """Close idle connections."""
        for pool in list(self._pools.values()):
            pool.close_stale(float("inf"))
