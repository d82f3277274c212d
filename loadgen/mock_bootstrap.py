"""SGLang's hand-over in a mock worker: both servers get the request at once and meet in a room of the prefill
server's bootstrap server. As read in the sources of 0.5.23.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from loadgen.mock_api import ApiError
from loadgen.mock_hand_over import (
    NO_PASSAGE,
    Arrival,
    Connector,
    Offer,
    Passage,
    Site,
    carry,
    transfer_failed,
)
from policies.types import Role


def _future() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


@dataclass(slots=True, eq=False)
class Room:
    """Where the two legs of one request meet."""

    prefill: Arrival | None = None
    decode: Arrival | None = None
    decode_site: Site | None = None
    decode_came: asyncio.Future[None] = field(default_factory=_future)
    delivered: asyncio.Future[None] = field(default_factory=_future)
    failed: bool = False


class BootstrapConnector(Connector):
    async def start(self) -> None:
        if self._site.role is Role.PREFILL:
            self._site.fabric.names["bootstrap", self._site.address, self._site.bootstrap_port] = self._site

    async def stop(self) -> None:
        self._site.fabric.names.pop(("bootstrap", self._site.address, self._site.bootstrap_port), None)

    def passage(self, arrival: Arrival) -> Passage:
        if self._site.role is Role.BOTH:
            return NO_PASSAGE
        if arrival.wanted.hand_over.room is None:
            self._site.hand_over_counters.plain_refused += 1
            raise ApiError(500, "Disaggregated request received without bootstrap room id.", kind="Internal")
        return (
            _Send(self._site, arrival) if self._site.role is Role.PREFILL else _Receive(self._site, arrival)
        )


class _Send(Offer):
    """A prompt is computed when both sides are here, for one token whatever was asked for."""

    def __init__(self, site: Site, arrival: Arrival) -> None:
        super().__init__(site, arrival)
        arrival.sequence.max_tokens = 1
        self._name = _room_name(site.address, site.bootstrap_port, arrival, arrival.rank.number)
        self._room = _room(site, self._name)
        if self._room.prefill is not None:
            site.hand_over_counters.poisoned += 1
        self._room.prefill = arrival

    async def receive(self) -> None:
        await asyncio.wait([self._room.decode_came], timeout=self._site.hand_over.meeting_seconds)
        if not self._room.decode_came.done():
            raise transfer_failed(self._site)

    async def deliver(self) -> None:
        room, held = self._room, self._held
        assert held is not None
        assert room.decode is not None
        assert room.decode_site is not None
        try:
            await carry(room.decode_site, room.decode, held)
        except ApiError:
            room.failed = True
            raise
        finally:
            held.release()
            if not room.delivered.done():
                room.delivered.set_result(None)

    def close(self) -> None:
        super().close()
        if self._held is not None:
            self._held.release()
        self._site.fabric.names.pop(self._name, None)


class _Receive(Passage):
    def __init__(self, site: Site, arrival: Arrival) -> None:
        self._site = site
        self._arrival = arrival
        self._name: tuple[object, ...] | None = None

    async def receive(self) -> None:
        site, wanted = self._site, self._arrival.wanted.hand_over
        server: Site | None = site.fabric.names.get(("bootstrap", wanted.host, wanted.port))
        if server is None:
            await asyncio.sleep(site.hand_over.handshake_seconds)
            raise transfer_failed(site)
        assert wanted.room is not None
        rank = wanted.disagg_prefill_dp_rank
        number = wanted.room % len(server.ranks) if rank is None else rank
        self._name = _room_name(wanted.host, wanted.port, self._arrival, number)
        await self._meet(_room(site, self._name))

    async def _meet(self, room: Room) -> None:
        site = self._site
        if room.decode is not None:
            site.hand_over_counters.poisoned += 1
        room.decode, room.decode_site = self._arrival, site
        if not room.decode_came.done():
            room.decode_came.set_result(None)
        await asyncio.wait([room.delivered], timeout=site.hand_over.meeting_seconds)
        if not room.delivered.done() or room.failed:
            raise transfer_failed(site)
        assert room.prefill is not None
        if room.prefill.prompt != self._arrival.prompt:
            site.hand_over_counters.poisoned += 1

    def close(self) -> None:
        if self._name is not None:
            self._site.fabric.names.pop(self._name, None)


def _room_name(host: str | None, port: int | None, arrival: Arrival, rank: int) -> tuple[object, ...]:
    """A wrong rank is another room: the two never meet."""
    return ("room", host, port, arrival.wanted.hand_over.room, rank)


def _room(site: Site, name: tuple[object, ...]) -> Room:
    if name not in site.fabric.names:
        site.fabric.names[name] = Room()
    room: Room = site.fabric.names[name]
    return room
