"""vLLM's MooncakeConnector in a mock worker: an id of the gateway's joins both legs, in either order, and a
prefill worker's bootstrap server tells its engines' ids. As read in the sources of vLLM 0.32.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

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
    internal_error,
    transfer_failed,
)
from loadgen.mock_http import json_response
from policies.types import Role

NEEDED = ("transfer_id", "remote_bootstrap_addr", "remote_engine_id")


class MooncakeConnector(Connector):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.engine_ids = [secrets.token_hex(16) for _rank in site.ranks]
        self.offers: dict[str, asyncio.Future[Held | None]] = {}
        """By transfer id; None: it did not end by its length, and its blocks are gone."""
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        site = self._site
        if site.role is not Role.PREFILL:
            return
        app = web.Application()
        app.router.add_get("/query", self._query)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, site.address, site.bootstrap_port).start()
        site.fabric.names["mooncake", site.address, site.bootstrap_port] = self

    async def stop(self) -> None:
        self._site.fabric.names.pop(("mooncake", self._site.address, self._site.bootstrap_port), None)
        if self._runner is not None:
            await self._runner.cleanup()

    def passage(self, arrival: Arrival) -> Passage:
        parameters = arrival.wanted.hand_over.kv_transfer_params or {}
        is_pull, is_offer = parameters.get("do_remote_prefill"), parameters.get("do_remote_decode")
        if (is_pull and self._site.role is Role.PREFILL) or (is_offer and self._site.role is Role.DECODE):
            self._site.crash(arrival.transport)  # roles are asserted
            raise internal_error()
        if is_pull:
            return _Pull(self._site, arrival, parameters)
        return _Offer(self._site, arrival, self, parameters) if is_offer else NO_PASSAGE

    def offer(self, transfer_id: str) -> asyncio.Future[Held | None]:
        """Whoever comes first makes it."""
        return self.offers.setdefault(transfer_id, asyncio.get_running_loop().create_future())

    async def _query(self, _request: web.Request) -> web.Response:
        faults, ids = self._site.hand_over_faults, self.engine_ids
        if faults.take("wrong_engine_id"):
            ids = [secrets.token_hex(16) for _id in ids]
        place = f"{self._site.address}:{self._site.bootstrap_port}"
        ranks = {
            str(rank): {"engine_id": engine_id, "worker_addr": {"0": {"0": place}}}
            for rank, engine_id in enumerate(ids)
        }
        return json_response(ranks)


class _Offer(Offer):
    def __init__(
        self, site: Site, arrival: Arrival, connector: MooncakeConnector, parameters: dict[str, Any]
    ) -> None:
        super().__init__(site, arrival)
        self._offer = connector.offer(str(parameters.get("transfer_id")))
        arrival.sequence.is_handed_over = arrival.wanted.max_tokens is not None

    def computed(self) -> None:
        if self._arrival.sequence.is_handed_over:
            self._held = Held(self._site, self._arrival)
        if not self._offer.done():
            self._offer.set_result(self._held)


class _Pull(Passage):
    def __init__(self, site: Site, arrival: Arrival, parameters: dict[str, Any]) -> None:
        self._site = site
        self._arrival = arrival
        self._parameters = parameters

    async def receive(self) -> None:
        given, site = self._parameters, self._site
        if any(given.get(name) is None for name in NEEDED):
            await hang_until_death(site)
        held = await self._held()
        if held.has_expired:
            raise transfer_failed(site)
        check_fits(site, self._arrival, held)
        held.renew()
        try:
            await carry(site, self._arrival, held)
        finally:
            held.release()

    async def _held(self) -> Held:
        given, site = self._parameters, self._site
        place = urlsplit(given["remote_bootstrap_addr"])
        connector: MooncakeConnector | None
        connector = site.fabric.names.get(("mooncake", place.hostname, place.port))
        if connector is None:
            await asyncio.sleep(site.hand_over.handshake_seconds)
            raise transfer_failed(site)
        if given["remote_engine_id"] not in connector.engine_ids:
            raise transfer_failed(site)
        offer = connector.offer(given["transfer_id"])
        await asyncio.wait([offer], timeout=site.hand_over.meeting_seconds)
        connector.offers.pop(given["transfer_id"], None)
        held: Held | None = offer.result() if offer.done() else None
        if held is None:
            raise transfer_failed(site)
        return held
