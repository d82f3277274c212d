"""Which of a name's addresses is connected to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from router import dialing
from router.dialing import Dialer, Opened, first_to_connect
from router.host_names import HostNames
from router.worker_address import WorkerAddress
from tests.support.certificates import system_trust
from tests.support.fake_transport import FakeTransport
from tests.support.raw_worker import RawWorker, answering, json_answer
from tests.support.waiting import eventually


class Addresses:
    """Attempts at addresses, each of which ends as the test says."""

    def __init__(self) -> None:
        self.attempts: dict[str, asyncio.Future[Opened[asyncio.Protocol]]] = {}

    async def connect(self, address: str) -> Opened[asyncio.Protocol]:
        self.attempts[address] = asyncio.get_running_loop().create_future()
        return await self.attempts[address]

    def open(self, address: str) -> FakeTransport:
        transport = FakeTransport()
        self.attempts[address].set_result((transport, asyncio.Protocol()))
        return transport


def dial(addresses: Addresses, *names: str) -> asyncio.Task[tuple[str, Opened[asyncio.Protocol]]]:
    return asyncio.ensure_future(first_to_connect(names, addresses.connect))


async def test_first_address_alone_where_it_answers() -> None:
    addresses = Addresses()
    dialed = dial(addresses, "a", "b")
    await eventually(lambda: "a" in addresses.attempts)
    transport = addresses.open("a")
    assert await dialed == ("a", (transport, addresses.attempts["a"].result()[1]))
    assert list(addresses.attempts) == ["a"]


async def test_next_address_at_once_where_one_refuses() -> None:
    addresses = Addresses()
    dialed = dial(addresses, "a", "b")
    await eventually(lambda: "a" in addresses.attempts)
    addresses.attempts["a"].set_exception(ConnectionRefusedError(111, "refused"))
    await eventually(lambda: "b" in addresses.attempts)
    addresses.open("b")
    assert (await dialed)[0] == "b"


async def test_next_address_beside_one_that_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The silent one is given up once another has answered."""
    monkeypatch.setattr(dialing, "NEXT_ADDRESS_SECONDS", 0.001)
    addresses = Addresses()
    dialed = dial(addresses, "a", "b")
    await eventually(lambda: "b" in addresses.attempts)
    addresses.open("b")
    assert (await dialed)[0] == "b"
    await eventually(addresses.attempts["a"].cancelled)


@pytest.mark.parametrize("leave", [False, True])
async def test_of_two_that_answer_at_once_one_is_closed_and_both_when_nobody_waits(
    monkeypatch: pytest.MonkeyPatch, leave: bool
) -> None:
    monkeypatch.setattr(dialing, "NEXT_ADDRESS_SECONDS", 0.001)
    addresses = Addresses()
    dialed = dial(addresses, "a", "b")
    await eventually(lambda: "b" in addresses.attempts)
    transports = [addresses.open("a"), addresses.open("b")]
    if leave:
        await asyncio.sleep(0)  # both attempts end here, and what waits for them has not run yet
        dialed.cancel()
    await asyncio.wait([dialed])
    assert sorted(transport.state for transport in transports) == ["aborted", "aborted" if leave else "open"]


async def test_no_address_answers() -> None:
    addresses = Addresses()
    dialed = dial(addresses, "a", "b")
    for name in ("a", "b"):
        await eventually(lambda name=name: name in addresses.attempts)
        addresses.attempts[name].set_exception(OSError(f"{name} is down"))
    with pytest.raises(OSError, match="b is down"):
        await dialed


def names_of(addresses: Callable[[], list[str]]) -> HostNames:
    async def look_up(host: str) -> list[str]:
        return addresses()

    return HostNames(lambda: 0.0, look_up)


async def test_name_whose_first_address_is_of_no_use_is_asked_at_the_other_from_then_on() -> None:
    """As `localhost`, where a worker listens on IPv4 alone."""
    names = names_of(lambda: ["::1", "127.0.0.1"])
    dialer = Dialer(system_trust(), names)
    async with RawWorker(answering(json_answer())) as worker:
        address = WorkerAddress.parse(f"http://worker:{worker.port}")
        for _ in range(2):
            connection = await dialer.dial(address, Kept)
            connection.transport.abort()
            assert await names.addresses("worker") == ["127.0.0.1", "::1"]


async def test_name_that_moved_is_looked_up_anew_after_a_failure() -> None:
    found = [["127.0.0.2"], ["127.0.0.1"]]
    dialer = Dialer(system_trust(), names_of(lambda: found.pop(0)))
    async with RawWorker(answering(json_answer())) as worker:
        address = WorkerAddress.parse(f"http://worker:{worker.port}")
        with pytest.raises(ConnectionRefusedError):
            await dialer.dial(address, Kept)
        (await dialer.dial(address, Kept)).transport.abort()


class Kept(asyncio.Protocol):
    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
