"""vLLM's NixlConnector in a mock worker: who prefills says in its answer where the blocks lie, who decodes
pulls them. What it does with bad parameters is what vLLM 0.32 was seen to do.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from typing import Any

from loadgen.mock_hand_over import (
    NO_PASSAGE,
    Arrival,
    Connector,
    Held,
    Offer,
    Passage,
    Site,
    carry,
    check_fits,
    hang_until_death,
    transfer_failed,
)

SIDE_CHANNEL_PORT = 14_579
"""Of worker 0's rank 0; a name in the fleet's fabric, nobody listens."""
NEEDED = (
    "remote_engine_id",
    "remote_request_id",
    "remote_host",
    "remote_port",
    "remote_block_ids",
    "tp_size",
)


class NixlEngine:
    """One rank's side channel."""

    def __init__(self, engine_id: str) -> None:
        self.id = engine_id
        self.held: dict[str, Held] = {}


class NixlConnector(Connector):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.engines = [NixlEngine(secrets.token_hex(16)) for _rank in site.ranks]

    async def start(self) -> None:
        for number, engine in enumerate(self.engines):
            self._site.fabric.names["nixl", self._site.address, self.port_of(number)] = engine

    async def stop(self) -> None:
        for number in range(len(self.engines)):
            self._site.fabric.names.pop(("nixl", self._site.address, self.port_of(number)), None)

    def port_of(self, rank: int) -> int:
        """Of all workers' ranks; there are never as many as this leaves room for."""
        return SIDE_CHANNEL_PORT + self._site.index * 64 + rank

    def passage(self, arrival: Arrival) -> Passage:
        parameters = arrival.wanted.hand_over.kv_transfer_params or {}
        if parameters.get("do_remote_prefill"):
            return _Pull(self._site, arrival, parameters)
        if parameters.get("do_remote_decode") and arrival.wanted.max_tokens is not None:
            return _Offer(self._site, arrival, self)
        return NO_PASSAGE


class _Offer(Offer):
    """Only a prompt that ends by its length is offered."""

    def __init__(self, site: Site, arrival: Arrival, connector: NixlConnector) -> None:
        super().__init__(site, arrival)
        self._connector = connector
        self._id = f"{arrival.request_id}-0-{secrets.token_hex(4)}"

    def computed(self) -> None:
        self._held = Held(self._site, self._arrival)
        self._connector.engines[self._arrival.rank.number].held[self._id] = self._held

    def members(self) -> Mapping[str, Any]:
        assert self._held is not None
        number, faults = self._arrival.rank.number, self._site.hand_over_faults
        wrong = faults.take("wrong_engine_id")
        parameters = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [self._held.block_ids],
            "remote_engine_id": secrets.token_hex(16) if wrong else self._connector.engines[number].id,
            "remote_request_id": self._id,
            "remote_host": self._site.address,
            "remote_port": self._connector.port_of(number),
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": len(self._held.prompt),
            "remote_blocks_expiry_time": None,
            "transfer_mode": "pull",
            "remote_prefill_cached_tokens": self._held.cached_tokens,
        }
        if faults.take("drop_parameter"):
            if faults.dropped_parameter is None:
                return {"kv_transfer_params": None}
            del parameters[faults.dropped_parameter]
        return {"kv_transfer_params": parameters}


class _Pull(Passage):
    """A prompt whose blocks another engine has."""

    def __init__(self, site: Site, arrival: Arrival, parameters: Mapping[str, Any]) -> None:
        self._site = site
        self._arrival = arrival
        self._parameters = parameters

    async def receive(self) -> None:
        given, site = self._parameters, self._site
        if any(given.get(name) is None for name in NEEDED):
            await hang_until_death(site)
        engine = site.fabric.names.get(("nixl", given["remote_host"], given["remote_port"]))
        if engine is None:
            await asyncio.sleep(site.hand_over.handshake_seconds)
            raise transfer_failed(site)
        if engine.id != given["remote_engine_id"]:
            raise transfer_failed(site)
        held = engine.held.pop(given["remote_request_id"], None)
        if held is None or held.has_expired:
            self._read_freed_blocks()
            return
        check_fits(site, self._arrival, held)
        await self._fetch(held)
        self._arrival.sequence.reported_cached_tokens = given.get("remote_prefill_cached_tokens")

    async def _fetch(self, held: Held) -> None:
        """A decode engine that gives up tells the other to let go."""
        held.renew()
        try:
            await carry(self._site, self._arrival, held)
        finally:
            held.release()

    def _read_freed_blocks(self) -> None:
        """Sent twice, or behind the lease: 200, with whatever lies there now."""
        self._site.hand_over_counters.poisoned += 1
        self._arrival.sequence.transferred_tokens = self._arrival.sequence.num_prompt_tokens
