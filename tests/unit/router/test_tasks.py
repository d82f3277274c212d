"""Background tasks."""

from __future__ import annotations

import asyncio
import gc
import logging

import pytest

from router.tasks import start_task


async def test_result_can_be_awaited_and_the_name_is_kept() -> None:
    async def work() -> int:
        return 7

    task = start_task(work(), "seven")
    assert task.get_name() == "seven"
    assert await task == 7


async def test_nobody_need_hold_it() -> None:
    begun, go_on, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        await go_on.wait()
        done.set()

    start_task(work(), "alone")
    await begun.wait()
    gc.collect()
    go_on.set()
    await done.wait()


async def test_failure_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        raise KeyError("lost")

    task = start_task(work(), "failing")
    with pytest.raises(KeyError):
        await task
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "failing" in record.getMessage()
    assert record.exc_info


async def test_cancelling_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    task = start_task(asyncio.Event().wait(), "waiting")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not caplog.records
