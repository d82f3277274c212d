"""The subscriber over real sockets on the loopback."""

from __future__ import annotations

import asyncio
import socket as sockets
from collections.abc import Iterator

import pytest
import zmq

from indexer.subscriber import KvSubscriber
from tests.support.kv_publisher import KvPublisher, number, publisher_again
from tests.support.waiting import eventually
from tests.support.zmq_context import zmq_context


@pytest.fixture
def context() -> Iterator[zmq.Context]:
    with zmq_context() as made:
        yield made


class Sink:
    """Notes what it hears, and lets a test wait for it."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[tuple] = asyncio.Queue()

    def on_message(self, sequence: int, payload: bytes) -> None:
        self.heard.put_nowait(("message", sequence, payload))

    def on_replay_message(self, sequence: int, payload: bytes) -> None:
        self.heard.put_nowait(("replay", sequence, payload))

    def on_replay_end(self) -> None:
        self.heard.put_nowait(("replay end",))

    def on_replay_failed(self, reason: str) -> None:
        self.heard.put_nowait(("replay failed", reason))

    def on_connected(self) -> None:
        self.heard.put_nowait(("connected",))

    def on_disconnected(self) -> None:
        self.heard.put_nowait(("disconnected",))

    def on_malformed(self, reason: str) -> None:
        self.heard.put_nowait(("malformed", reason))

    async def next(self) -> tuple:
        return await asyncio.wait_for(self.heard.get(), 10)


async def subscribed(subscriber: KvSubscriber, sink: Sink, publisher: KvPublisher) -> None:
    """Wait until messages get through: a subscription reaches the publisher after the connection."""
    assert await sink.next() == ("connected",)
    await eventually(lambda: publisher.send_raw(b"probe") or not sink.heard.empty())
    publisher.send_raw(b"t", b"last probe", b"")
    while await sink.next() != ("malformed", "sequence_frame"):
        pass


async def test_messages_arrive_in_order(context: zmq.Context) -> None:
    publisher, sink = KvPublisher(context), Sink()
    subscriber = KvSubscriber(publisher.endpoint, None, sink, context=context)
    subscriber.start()
    await subscribed(subscriber, sink, publisher)
    for value in range(5_000):  # more than one slice
        publisher.publish(b"%d" % value)
    assert [await sink.next() for _ in range(5_000)] == [
        ("message", value, b"%d" % value) for value in range(5_000)
    ]
    subscriber.stop()
    publisher.close()


async def test_other_things_run_between_slices(context: zmq.Context) -> None:
    publisher, sink = KvPublisher(context), Sink()
    subscriber = KvSubscriber(publisher.endpoint, publisher.replay_endpoint, sink, context=context)
    publisher.sent = [b"x"] * 20_000
    subscriber.start()
    subscriber.request_replay(0)
    turns_with_news = 0
    num_heard = 0
    while num_heard < 20_000:
        await asyncio.sleep(0)
        turns_with_news += sink.heard.qsize() > num_heard
        num_heard = sink.heard.qsize()
    assert turns_with_news > 5, "20,000 messages take far longer than one slice"
    subscriber.stop()
    publisher.close()


async def test_only_the_topic_asked_for(context: zmq.Context) -> None:
    publisher, sink = KvPublisher(context), Sink()
    subscriber = KvSubscriber(publisher.endpoint, None, sink, context=context, topic="kv-")
    subscriber.start()
    assert await sink.next() == ("connected",)

    def publish_both() -> None:
        publisher.send_raw(b"other", number(1), b"")
        publisher.send_raw(b"kv-events", number(2), b"mine")

    await eventually(lambda: publish_both() or not sink.heard.empty())
    assert await sink.next() == ("message", 2, b"mine")
    subscriber.stop()
    publisher.close()


async def test_frames_that_are_no_message_are_reported(context: zmq.Context) -> None:
    publisher, sink = KvPublisher(context), Sink()
    subscriber = KvSubscriber(publisher.endpoint, None, sink, context=context)
    subscriber.start()
    await subscribed(subscriber, sink, publisher)
    publisher.send_raw(b"one frame")
    publisher.send_raw(b"t", number(1), b"payload", b"extra")
    publisher.send_raw(b"t", b"\x01", b"payload")
    publisher.publish(b"good")
    assert [await sink.next() for _ in range(4)] == [
        ("malformed", "frame_count"),
        ("malformed", "frame_count"),
        ("malformed", "sequence_frame"),
        ("message", 0, b"good"),
    ]
    subscriber.stop()
    publisher.close()


async def test_publisher_that_connects(context: zmq.Context) -> None:
    with sockets.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    sink = Sink()
    subscriber = KvSubscriber(f"bind:{address}", None, sink, context=context)
    subscriber.start()
    publisher = KvPublisher(context, connect_to=address)
    await subscribed(subscriber, sink, publisher)
    publisher.publish(b"hello")
    assert await sink.next() == ("message", 0, b"hello")
    # A peer that is no publisher comes and goes: the publisher is still there.
    port = int(address.rpartition(":")[2])
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.close()
    await writer.wait_closed()
    second = KvPublisher(context, connect_to=address)
    assert await sink.next() == ("connected",)
    second.close()
    publisher.close()
    assert await sink.next() == ("disconnected",)
    assert sink.heard.empty(), "disconnected is when the last one is gone"
    subscriber.stop()


@pytest.mark.parametrize("with_topic", [True, False], ids=["from 0.26", "up to 0.25"])
async def test_replay(context: zmq.Context, with_topic: bool) -> None:
    publisher, sink = KvPublisher(context, with_topic=with_topic), Sink()
    publisher.sent = [b"a", b"b", b"c"]
    subscriber = KvSubscriber(publisher.endpoint, publisher.replay_endpoint, sink, context=context)
    subscriber.start()
    assert await sink.next() == ("connected",)
    subscriber.request_replay(1)
    assert [await sink.next() for _ in range(3)] == [
        ("replay", 1, b"b"),
        ("replay", 2, b"c"),
        ("replay end",),
    ]
    subscriber.request_replay(7)  # beyond the newest: the end alone
    assert await sink.next() == ("replay end",)
    assert publisher.replays_asked == [1, 7]
    subscriber.stop()
    publisher.close()


async def test_a_new_replay_ends_the_one_that_runs(context: zmq.Context) -> None:
    publisher, sink = KvPublisher(context, sends_marker=False), Sink()
    publisher.sent = [b"a"]
    subscriber = KvSubscriber(publisher.endpoint, publisher.replay_endpoint, sink, context=context)
    subscriber.start()
    assert await sink.next() == ("connected",)
    subscriber.request_replay(0)
    assert await sink.next() == ("replay", 0, b"a")
    subscriber.request_replay(0)
    publisher.sent = [b"new"]  # the first question was answered before the second was asked
    assert await sink.next() == ("replay", 0, b"new")
    subscriber.stop()
    publisher.close()


@pytest.mark.parametrize("fault", [{"sends_marker": False}, {"answers_replay": False}], ids=str)
async def test_a_replay_that_falls_silent_has_failed(context: zmq.Context, fault: dict) -> None:
    publisher, sink = KvPublisher(context, **fault), Sink()
    publisher.sent = [b"a"]
    subscriber = KvSubscriber(
        publisher.endpoint, publisher.replay_endpoint, sink, context=context, replay_silence_seconds=0.1
    )
    subscriber.start()
    subscriber.request_replay(0)
    heard = [await sink.next()]
    while heard[-1][0] != "replay failed":
        heard.append(await sink.next())
    assert heard[-1] == ("replay failed", "nothing came for 0.1 s")
    assert (("replay", 0, b"a") in heard) == ("sends_marker" in fault)
    subscriber.stop()
    publisher.close()


async def test_replay_endpoint_that_is_none_fails_the_replay(context: zmq.Context) -> None:
    publisher, sink = KvPublisher(context), Sink()
    subscriber = KvSubscriber(publisher.endpoint, "nonsense", sink, context=context)
    subscriber.start()
    assert await sink.next() == ("connected",)
    subscriber.request_replay(0)
    kind, reason = await sink.next()
    assert kind == "replay failed"
    assert "replay socket" in reason
    subscriber.stop()
    publisher.close()


async def test_restart_of_the_publisher(context: zmq.Context) -> None:
    publisher, sink = KvPublisher(context), Sink()
    endpoints = {"endpoint": publisher.endpoint, "replay_endpoint": publisher.replay_endpoint}
    subscriber = KvSubscriber(publisher.endpoint, publisher.replay_endpoint, sink, context=context)
    subscriber.start()
    await subscribed(subscriber, sink, publisher)
    publisher.publish(b"old")
    assert await sink.next() == ("message", 0, b"old")
    publisher.close()
    assert await sink.next() == ("disconnected",)
    publisher = await publisher_again(context, **endpoints)
    await subscribed(subscriber, sink, publisher)
    publisher.publish(b"new")
    assert await sink.next() == ("message", 0, b"new")
    subscriber.request_replay(0)
    assert [await sink.next() for _ in range(2)] == [("replay", 0, b"new"), ("replay end",)]
    subscriber.stop()
    publisher.close()


async def test_nothing_is_reported_after_stop(context: zmq.Context) -> None:
    publisher = KvPublisher(context)

    class StopsAtFirst(Sink):
        def on_message(self, sequence: int, payload: bytes) -> None:
            super().on_message(sequence, payload)
            subscriber.stop()

    sink, witness = StopsAtFirst(), Sink()
    subscriber = KvSubscriber(publisher.endpoint, publisher.replay_endpoint, sink, context=context)
    other = KvSubscriber(publisher.endpoint, None, witness, context=context)
    subscriber.start()
    other.start()
    await subscribed(subscriber, sink, publisher)
    await subscribed(other, witness, publisher)
    subscriber.request_replay(0)
    for _ in range(10):
        publisher.publish(b"x")
    while await sink.next() != ("message", 0, b"x"):
        pass
    while await witness.next() != ("message", 9, b"x"):
        pass
    assert sink.heard.empty()
    other.stop()
    subscriber.stop()
    publisher.close()


async def test_no_reader_is_left(context: zmq.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    publisher, sink = KvPublisher(context), Sink()
    watched: list[int] = []
    monkeypatch.setattr(loop, "add_reader", lambda fd, _callback: watched.append(fd))
    monkeypatch.setattr(loop, "remove_reader", watched.remove)
    subscriber = KvSubscriber(publisher.endpoint, publisher.replay_endpoint, sink, context=context)
    subscriber.start()
    subscriber.request_replay(0)
    assert len(watched) == 3, "events, monitor, replay"
    subscriber.stop()
    assert watched == []
    monkeypatch.undo()
    publisher.close()


async def test_unusable_endpoints_are_refused_and_nothing_stays_open(context: zmq.Context) -> None:
    for endpoint in ("nonsense", "bind:tcp://192.0.2.1:1"):
        with pytest.raises(zmq.ZMQError):
            KvSubscriber(endpoint, None, Sink(), context=context).start()


async def test_replay_without_an_endpoint_is_a_mistake(context: zmq.Context) -> None:
    subscriber = KvSubscriber("tcp://127.0.0.1:1", None, Sink(), context=context)
    subscriber.start()
    with pytest.raises(ValueError, match="no replay endpoint"):
        subscriber.request_replay(0)
    subscriber.stop()
