"""SGLang's HTTP face of a mock worker, as read in the sources of 0.5.5 to 0.5.23."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from loadgen.mock_answers import GenerateAnswer
from loadgen.mock_api import ApiError, GenerationRequest, parse_generate
from loadgen.mock_http import OPENAI_PATHS, RANK_HEADER, EngineApi, json_response
from loadgen.mock_metrics import render_sglang_metrics
from loadgen.mock_ranks import MockRank, busy_least, rank_named
from policies.types import Role

GENERATE_PATH = "/generate"
_MODES = {Role.BOTH: "null", Role.PREFILL: "prefill", Role.DECODE: "decode"}


class SglangApi(EngineApi):
    """Request handlers for one worker."""

    owner = "sglang"
    protocols = {**OPENAI_PATHS, GENERATE_PATH: (parse_generate, GenerateAnswer)}

    def add_routes(self, app: web.Application) -> None:
        super().add_routes(app)
        app.router.add_get("/server_info", self.server_info)
        app.router.add_get("/get_server_info", self.server_info)
        app.router.add_get("/model_info", self.model_info)
        app.router.add_post("/flush_cache", self.flush_cache)

    def error_body(self, error: ApiError) -> bytes:
        fields = {"message": error.message, "type": error.kind, "param": error.param, "code": error.status}
        return msgspec.json.encode({"object": "error", **fields})

    def render_metrics(self) -> str:
        return render_sglang_metrics(
            [rank.model for rank in self._host.ranks], model_name=self._host.identity.model
        )

    def _rank_for(self, request: web.Request, wanted: GenerationRequest) -> MockRank:
        """Its own API reads no header. A prefill server that is told no rank takes the room's."""
        ranks, fields = self._host.ranks, wanted.hand_over
        if request.path != GENERATE_PATH and RANK_HEADER in request.headers:
            return super()._rank_for(request, wanted)
        if fields.routed_dp_rank is not None:
            return rank_named(ranks, str(fields.routed_dp_rank)) or ranks[0]
        if self._host.role is Role.PREFILL and fields.room is not None:
            return ranks[fields.room % len(ranks)]
        return busy_least(ranks, self._host.next_turn())

    async def server_info(self, _request: web.Request) -> web.Response:
        settings, identity = self._host.ranks[0].model.settings, self._host.identity
        info: dict[str, Any] = {
            "model_path": identity.model,
            "served_model_name": identity.model,
            "version": identity.version,
            "page_size": self._host.told_block_tokens,
            "dp_size": len(self._host.ranks),
            "max_total_num_tokens": settings.capacity_tokens,
            "enable_cache_report": True,
            "disable_radix_cache": False,
            "disaggregation_mode": _MODES[self._host.role],
            "disaggregation_bootstrap_port": self._host.bootstrap_port,
            "internal_states": [{"memory_usage": {}} for _ in self._host.ranks],
        }
        if self._host.release.announces:
            info["kv_events"] = self._announcement()
        return json_response(info)

    def _announcement(self) -> dict[str, Any]:
        """Its publisher listens on any address of its host, says the wildcard."""
        return {
            "publisher": "zmq",
            "endpoint_host": "*",
            "endpoint_port_base": self._host.events_port,
            "replay_endpoint_port_base": self._host.replay_port,
            "topic": self._host.topic,
            "block_size": self._host.told_block_tokens,
            "dp_size": len(self._host.ranks),
        }

    async def model_info(self, _request: web.Request) -> web.Response:
        name = self._host.identity.model
        return json_response({"model_path": name, "tokenizer_path": name, "is_generation": True})

    async def flush_cache(self, _request: web.Request) -> web.Response:
        if self.reset():
            return web.Response(text="Cache flushed.\n")
        return web.Response(status=400, text="Flush cache failed: requests are running.\n")
