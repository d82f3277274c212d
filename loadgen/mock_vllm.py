"""vLLM's HTTP face of a mock worker, as of 0.32: what it has beyond the paths that all engines have."""

from __future__ import annotations

from aiohttp import web

from loadgen.mock_answers import MessagesAnswer, ResponsesAnswer
from loadgen.mock_api import ApiError, EmbeddingsBody, decode, parse_messages, parse_responses
from loadgen.mock_http import OPENAI_PATHS, EngineApi, json_response
from loadgen.mock_metrics import render_vllm_metrics
from loadgen.tokenizer import tokenize

EMBEDDING = [0.0, 0.6, 0.8]


class VllmApi(EngineApi):
    """Request handlers for one worker."""

    owner = "vllm"
    protocols = {
        **OPENAI_PATHS,
        "/v1/responses": (parse_responses, ResponsesAnswer),
        "/v1/messages": (parse_messages, MessagesAnswer),
    }

    def add_routes(self, app: web.Application) -> None:
        super().add_routes(app)
        app.router.add_post("/v1/embeddings", self.embeddings)
        app.router.add_post("/reset_prefix_cache", self.reset_prefix_cache)
        app.router.add_get("/ping", self.health)
        app.router.add_get("/version", self.version)
        app.router.add_get("/load", self.load)

    def error_body(self, error: ApiError) -> bytes:
        return error.body()

    def render_metrics(self) -> str:
        identity = self._host.identity
        return render_vllm_metrics(
            [rank.model for rank in self._host.ranks],
            model_name=identity.model,
            block_tokens=self._host.told_block_tokens,
            start_time=identity.start_time,
            lag_seconds_mean=max(rank.driver.lag_seconds_mean for rank in self._host.ranks),
            lag_seconds_max=max(rank.driver.lag_seconds_max for rank in self._host.ranks),
        )

    async def embeddings(self, request: web.Request) -> web.Response:
        body = decode(await request.read(), EmbeddingsBody)
        name, _adapter = self._resolve(body.model)
        texts = [body.input] if isinstance(body.input, str) else body.input
        count = sum(len(tokenize(text)) for text in texts)
        data = [{"object": "embedding", "index": i, "embedding": EMBEDDING} for i in range(len(texts))]
        usage = {"prompt_tokens": count, "total_tokens": count}
        return json_response({"object": "list", "data": data, "model": name, "usage": usage})

    async def reset_prefix_cache(self, _request: web.Request) -> web.Response:
        return json_response({"success": self.reset()})

    async def version(self, _request: web.Request) -> web.Response:
        return json_response({"version": self._host.identity.version})

    async def load(self, _request: web.Request) -> web.Response:
        return json_response({"server_load": 0})
