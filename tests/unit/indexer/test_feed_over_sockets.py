"""Subscriber and feed together, over real sockets: gaps, restarts and garbage end in an exact index."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import zmq

from indexer.blocks import TOKEN_BYTES, chain_block_hashes, pack_tokens, root_seed
from indexer.feed import KvFeed, RequestReplay
from indexer.subscriber import KvSubscriber
from indexer.trust import TrustLevel
from tests.support.kv_publisher import KvPublisher, publisher_again
from tests.support.vllm_events import batch, removed, stored
from tests.support.waiting import eventually
from tests.support.zmq_context import zmq_context


@pytest.fixture
def context() -> Iterator[zmq.Context]:
    with zmq_context() as made:
        yield made


class Shell:
    """Carries what the sockets bring into the feed, and the feed's commands to the sockets."""

    def __init__(self, publisher: KvPublisher, context: zmq.Context, *, can_replay: bool = True) -> None:
        self.feed = KvFeed()
        self.feed.add_publisher(0, engine="vllm", base_model="m", block_tokens=4, can_replay=can_replay)
        replay_endpoint = publisher.replay_endpoint if can_replay else None
        self.subscriber = KvSubscriber(publisher.endpoint, replay_endpoint, self, context=context)
        self.subscriber.start()

    def obey(self, commands: list[RequestReplay]) -> None:
        for command in commands:
            self.subscriber.request_replay(command.from_sequence)

    def on_message(self, sequence: int, payload: bytes) -> None:
        self.obey(self.feed.receive(0, sequence, payload))

    def on_replay_message(self, sequence: int, payload: bytes) -> None:
        self.obey(self.feed.receive_replay(0, sequence, payload))

    def on_replay_end(self) -> None:
        self.obey(self.feed.replay_ended(0))

    def on_replay_failed(self, reason: str) -> None:
        self.obey(self.feed.replay_failed(0, reason))

    def on_connected(self) -> None:
        self.obey(self.feed.connected(0))

    def on_disconnected(self) -> None:
        self.feed.disconnected(0)

    def on_malformed(self, reason: str) -> None:
        self.feed.malformed(0, reason)

    def believed(self) -> set[int]:
        seed = root_seed("m")
        return {
            block
            for block in range(10)
            if self.feed.overlap(
                chain_block_hashes(pack_tokens([block] * 4), 4 * TOKEN_BYTES, seed), 1
            ).device
        }

    async def becomes(self, *blocks: int) -> None:
        """Exact, and holding just these."""
        await eventually(
            lambda: self.feed.trust(0).level is TrustLevel.EXACT and self.believed() == set(blocks),
            what=f"{self.believed()} {self.feed.trust(0)}",
        )


def store_of(block: int, timestamp: float = 1.0) -> bytes:
    return batch(stored([block], [block] * 4), timestamp=timestamp)


async def test_what_was_published_before_we_came(context: zmq.Context) -> None:
    publisher = KvPublisher(context)
    for payload in (store_of(1), store_of(2), batch(removed(1))):
        publisher.publish(payload)
    shell = Shell(publisher, context)
    await shell.becomes(2)
    assert shell.feed.trust(0).reason == ""
    shell.subscriber.stop()
    publisher.close()


async def test_lost_messages_are_replayed(context: zmq.Context) -> None:
    publisher = KvPublisher(context)
    shell = Shell(publisher, context)
    publisher.publish(store_of(1))
    await shell.becomes(1)
    publisher.publish(batch(removed(1)), is_lost=True)
    publisher.publish(store_of(2), is_lost=True)
    await eventually(lambda: publisher.publish(store_of(3)) or shell.believed() == {2, 3})
    assert shell.feed.stats(0).num_gaps >= 1
    shell.subscriber.stop()
    publisher.close()


@pytest.mark.parametrize("can_replay", [True, False])
async def test_a_restarted_engine_is_learnt_anew(context: zmq.Context, can_replay: bool) -> None:
    publisher = KvPublisher(context)
    endpoints = {"endpoint": publisher.endpoint, "replay_endpoint": publisher.replay_endpoint}
    shell = Shell(publisher, context, can_replay=can_replay)
    await eventually(lambda: publisher.publish(store_of(1)) or shell.believed() == {1})
    publisher.close()
    await eventually(lambda: shell.feed.trust(0).level is TrustLevel.RECOVERING, what="the loss shows")
    assert shell.believed() == set()
    publisher = await publisher_again(context, **endpoints)
    await eventually(lambda: publisher.publish(store_of(2, timestamp=2.0)) or shell.believed() == {2})
    shell.subscriber.stop()
    publisher.close()


async def test_garbage_does_not_disturb(context: zmq.Context) -> None:
    publisher = KvPublisher(context)
    shell = Shell(publisher, context)
    publisher.publish(store_of(1))
    await shell.becomes(1)
    await eventually(lambda: publisher.publish(store_of(2)) or shell.believed() == {1, 2})
    publisher.send_raw(b"garbage")
    publisher.send_raw(b"kv-events", b"\x00" * 8, b"garbage")
    publisher.send_raw(b"kv-events", b"\xff" * 8, b"garbage")
    publisher.publish(store_of(3))
    await shell.becomes(1, 2, 3)
    assert shell.feed.stats(0).ignored == {"frame_count": 1, "malformed_payload": 2}
    shell.subscriber.stop()
    publisher.close()
