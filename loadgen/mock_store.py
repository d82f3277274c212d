"""A KV store that a mock fleet's vLLM workers share (ExampleConnector, LMCache's and Mooncake's stores):
blocks are found by their content, no request says anything of it.
"""

from __future__ import annotations

import asyncio
from time import perf_counter

from loadgen.mock_hand_over import Arrival, Connector, Passage, Site, transfer_failed
from loadgen.transfer import Port, transfer

STORED_BLOCKS_MAX = 1 << 20
"""Of the whole store; beyond it it is emptied. Some 60 bytes each."""


class StoreConnector(Connector):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._store_port = Port()

    def passage(self, arrival: Arrival) -> Passage:
        return _Shared(self._site, arrival, self._store_port)


class _Shared(Passage):
    def __init__(self, site: Site, arrival: Arrival, store_port: Port) -> None:
        self._site = site
        self._arrival = arrival
        self._store_port = store_port

    async def receive(self) -> None:
        """Loads what the store has beyond the engine's own cache; the last token is computed here."""
        sequence, site, rank = self._arrival.sequence, self._site, self._arrival.rank
        size = sequence.block_tokens
        num_blocks = 0
        for block_hash in sequence.hashes[: (sequence.num_prompt_tokens - 1) // size]:
            if block_hash not in site.fabric.stored:
                break
            num_blocks += 1
        missing = num_blocks * size - rank.model.held_tokens(sequence)
        if missing <= 0:
            return
        now = perf_counter()
        ends_at = transfer(site.hand_over.transfer, missing, self._store_port, rank.port, now=now)
        await asyncio.sleep((ends_at - now) * site.hand_over_faults.slowness)
        if site.hand_over_faults.take("transfer_fails"):
            raise transfer_failed(site)
        site.hand_over_counters.transfers += 1
        site.hand_over_counters.transferred_tokens += missing
        sequence.transferred_tokens = num_blocks * size

    def computed(self) -> None:
        stored, sequence = self._site.fabric.stored, self._arrival.sequence
        if len(stored) > STORED_BLOCKS_MAX:
            stored.clear()
        stored.update(sequence.hashes[: sequence.num_prompt_tokens // sequence.block_tokens])
