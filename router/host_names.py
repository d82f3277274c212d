"""The addresses behind workers' host names, each looked up at most every few seconds. Who connects to them is
said elsewhere.

A lookup costs a thread's time and two system files or a trip to a name server. Workers that close their
connections would be paid for with one lookup a request.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from router.limits import HOST_NAME_SECONDS


async def look_up(host: str) -> list[str]:
    """The system's addresses for `host`, in its order of preference. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))


class _Lookup:
    """One name's, under way or done. The address that worked last stands first."""

    __slots__ = ("addresses", "task", "valid_until")

    def __init__(self, task: asyncio.Task[list[str]], valid_until: float) -> None:
        self.task = task
        self.valid_until = valid_until
        self.addresses: list[str] = []
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[list[str]]) -> None:
        if not task.cancelled() and task.exception() is None:
            self.addresses = task.result()


class HostNames:
    """`clock`: monotonic seconds; `look_up`: who knows the addresses."""

    def __init__(
        self,
        clock: Callable[[], float],
        look_up: Callable[[str], Coroutine[Any, Any, list[str]]] = look_up,
    ) -> None:
        self._clock = clock
        self._look_up = look_up
        self._lookups: dict[str, _Lookup] = {}

    @property
    def num_known(self) -> int:
        return len(self._lookups)

    async def addresses(self, host: str) -> Sequence[str]:
        """At least one. All who ask at the same time wait for one lookup. Raises OSError."""
        lookup = self._lookups.get(host)
        if lookup is None or lookup.valid_until <= self._clock():
            lookup = self._begin(host)
        if not lookup.addresses:
            try:
                await asyncio.shield(lookup.task)
            except OSError:
                self.forget(host)
                raise
        return lookup.addresses

    def prefer(self, host: str, address: str) -> None:
        """This one worked."""
        lookup = self._lookups.get(host)
        if lookup is not None and address in lookup.addresses:
            lookup.addresses.remove(address)
            lookup.addresses.insert(0, address)

    def forget(self, host: str) -> None:
        """None of them worked: look again next time."""
        self._lookups.pop(host, None)

    def _begin(self, host: str) -> _Lookup:
        now = self._clock()
        self._lookups = {name: old for name, old in self._lookups.items() if old.valid_until > now}
        lookup = _Lookup(asyncio.get_running_loop().create_task(self._look_up(host)), now + HOST_NAME_SECONDS)
        self._lookups[host] = lookup
        return lookup
