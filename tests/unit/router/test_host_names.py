"""Each name is looked up once in a while, whoever asks."""

from __future__ import annotations

import asyncio
import socket

import pytest

from router.host_names import HostNames
from router.limits import HOST_NAME_SECONDS


class Setup:
    """Names whose time is `now`, and lookups that answer what `answers` says, or wait for it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked: list[str] = []
        self.answers: dict[str, list[str] | OSError | asyncio.Future[list[str]]] = {}
        self.names = HostNames(lambda: self.now, self.look_up)

    async def look_up(self, host: str) -> list[str]:
        self.asked.append(host)
        answer = self.answers[host]
        if isinstance(answer, OSError):
            raise answer
        return await answer if isinstance(answer, asyncio.Future) else list(answer)


async def test_addresses_are_used_for_some_seconds() -> None:
    setup = Setup()
    setup.answers["w"] = ["10.0.0.1", "10.0.0.2"]
    assert await setup.names.addresses("w") == ["10.0.0.1", "10.0.0.2"]
    setup.now = HOST_NAME_SECONDS - 0.1
    setup.answers["w"] = ["10.0.0.3"]
    assert await setup.names.addresses("w") == ["10.0.0.1", "10.0.0.2"]
    setup.now = HOST_NAME_SECONDS
    assert await setup.names.addresses("w") == ["10.0.0.3"]
    assert setup.asked == ["w", "w"]


async def test_all_who_ask_at_once_share_a_lookup_also_when_the_first_of_them_leaves() -> None:
    setup = Setup()
    answer = setup.answers["w"] = asyncio.get_running_loop().create_future()
    first, second = (asyncio.ensure_future(setup.names.addresses("w")) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    answer.set_result(["10.0.0.1"])
    assert await second == ["10.0.0.1"]
    assert (setup.asked, first.cancelled()) == (["w"], True)


async def test_failed_lookup_is_told_to_all_and_not_kept() -> None:
    setup = Setup()
    setup.answers["w"] = socket.gaierror(-2, "Name or service not known")
    results = await asyncio.gather(*(setup.names.addresses("w") for _ in range(2)), return_exceptions=True)
    assert [type(result) for result in results] == [socket.gaierror] * 2
    assert setup.asked == ["w"]
    setup.answers["w"] = ["10.0.0.1"]
    assert await setup.names.addresses("w") == ["10.0.0.1"]


async def test_the_one_that_worked_stands_first_until_all_are_forgotten() -> None:
    setup = Setup()
    setup.answers["w"] = ["::1", "127.0.0.1"]
    await setup.names.addresses("w")
    setup.names.prefer("w", "127.0.0.1")
    assert await setup.names.addresses("w") == ["127.0.0.1", "::1"]
    setup.names.forget("w")
    assert await setup.names.addresses("w") == ["::1", "127.0.0.1"]


async def test_names_that_nobody_asks_for_any_more_are_dropped() -> None:
    setup = Setup()
    setup.answers |= {name: ["10.0.0.1"] for name in ("gone", "here")}
    await setup.names.addresses("gone")
    setup.now = HOST_NAME_SECONDS
    await setup.names.addresses("here")
    assert setup.names.num_known == 1


async def test_the_system_knows_this_machine() -> None:
    names = HostNames(lambda: 0.0)
    assert "127.0.0.1" in await names.addresses("localhost")
    with pytest.raises(socket.gaierror):
        await names.addresses("no-such-host.invalid")
