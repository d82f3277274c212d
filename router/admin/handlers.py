"""What each admin call does. Paths and methods are in the table of `app`."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import orjson
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from indexer.http import stream_dump, stream_snapshot
from policies import POLICIES, PolicyError, make_policy, parameters_of, read_policy, spell_policy
from policies.base import Policy
from policies.types import Decision
from router.admin.explain import explain
from router.admin.fleet import Fleet, Preview
from router.config import ConfigErrors, Settings, own_address_in, worker_from
from router.core.pool_policies import PolicyPool
from router.core.routing import RoutingCore
from router.discovery import WrongWorker
from router.engines.control import Order
from router.errors import BadRequest, RouterError
from router.metrics import Metrics

_logger = logging.getLogger("kvgate.admin")

DECISIONS_SHOWN = 20
"""Unless `limit` says otherwise; the core remembers more."""


class NotKnown(BadRequest):
    """No such worker or decision."""

    status = 404
    code = "not_found"


def json_response(content: object, status: int = 200) -> web.Response:
    body = orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    return web.Response(body=body, status=status, content_type="application/json")


def error_response(error: RouterError) -> web.Response:
    headers = dict(error.headers)
    return web.Response(
        body=error.body(), status=error.status, headers=headers, content_type="application/json"
    )


class Handlers:
    """One method for each call; errors leave as RouterError."""

    def __init__(
        self,
        *,
        core: RoutingCore,
        fleet: Fleet,
        metrics: Metrics,
        settings: Settings,
        preview: Preview,
        clock: Callable[[], float],
    ) -> None:
        self._core = core
        self._fleet = fleet
        self._metrics = metrics
        self._settings = settings
        self._preview = preview
        self._clock = clock

    async def health(self, request: web.Request) -> web.Response:
        return json_response({"status": "ok"})

    async def metrics(self, request: web.Request) -> web.Response:
        text = await self._metrics.exposition()
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def engine_metrics(self, request: web.Request) -> web.Response:
        text = await self._fleet.engine_metrics()
        return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    # Index

    async def dump(self, request: web.Request) -> web.StreamResponse:
        return await stream_dump(request, self._fleet.dump())

    async def snapshot(self, request: web.Request) -> web.StreamResponse:
        return await stream_snapshot(request, self._fleet.snapshot())

    # Workers

    async def list_workers(self, request: web.Request) -> web.Response:
        return json_response({"workers": list(self._fleet.views())})

    async def list_worker_urls(self, request: web.Request) -> web.Response:
        return json_response({"urls": list(dict.fromkeys(row["url"] for row in self._fleet.views()))})

    async def show_worker(self, request: web.Request) -> web.Response:
        return json_response(_shown(self._rows(request.match_info["id"])))

    async def add_worker(self, request: web.Request) -> web.Response:
        return await self._add_worker(await _json_object(request))

    async def add_worker_by_query(self, request: web.Request) -> web.Response:
        return await self._add_worker(dict(request.query))

    async def drain_worker(self, request: web.Request) -> web.Response:
        rows = self._rows(request.match_info["id"])
        draining = (await _json_object(request)).get("draining")
        if not isinstance(draining, bool):
            raise BadRequest('The body must be {"draining": true} or {"draining": false}', param="draining")
        if rows[0]["state"] == "pending":
            raise BadRequest(f"Worker {rows[0]['id']!r} has not answered yet: it serves nothing", param="id")
        for row in rows:
            self._core.set_draining(row["id"], draining, now=self._clock())
            _logger.info("worker %s %s", row["id"], "gets nothing new" if draining else "gets requests again")
        return json_response(_shown(self._rows(request.match_info["id"])))

    async def remove_worker(self, request: web.Request) -> web.Response:
        return await self._remove_worker(request.match_info["id"])

    async def remove_worker_by_query(self, request: web.Request) -> web.Response:
        url = request.query.get("url", "").rstrip("/")
        return await self._remove_worker(url or _missing("url"))

    def order(self, order: Order) -> Callable[[web.Request], Awaitable[web.Response]]:
        """The call that gives a worker's engine this order."""

        async def give(request: web.Request) -> web.Response:
            name = request.match_info["id"]
            await self._fleet.give_order(self._rows(name)[0]["id"], order, dict(request.query))
            return json_response(_shown(self._rows(name)))

        return give

    async def _add_worker(self, fields: Mapping[str, Any]) -> web.Response:
        try:
            worker = asdict(worker_from(fields))
            if what := own_address_in(worker["url"], self._settings):
                raise ValueError(what)
            options = {name: value for name, value in worker.items() if value is not None}
            worker_id = await self._fleet.add_worker(**options)
        except ConfigErrors as errors:
            raise BadRequest("; ".join(map(str, errors.mistakes))) from None
        except WrongWorker as error:
            raise BadRequest(str(error), param=error.field) from None
        rows = self._rows(worker_id)
        _logger.info("worker %s was added", worker_id)
        # 202: it is a member of the fleet, and joins when it answers.
        return json_response(_shown(rows), status=202 if rows[0]["state"] == "pending" else 201)

    async def _remove_worker(self, name: str) -> web.Response:
        row = self._rows(name)[0]
        removed = name if name == row["id"] else row["server"]
        await self._fleet.remove_worker(removed)
        _logger.info("worker %s was removed", removed)
        return json_response({"removed": removed})

    def _rows(self, name: str) -> list[dict[str, Any]]:
        """The worker of that id; all behind one URL by their common id or that URL."""
        rows = self._fleet.views()
        found = [row for row in rows if name == row["id"]]
        if found := found or [row for row in rows if name in (row["server"], row["url"].rstrip("/"))]:
            return found
        known = ", ".join(row["id"] for row in self._fleet.views()) or "none"
        raise NotKnown(f"No worker {name!r}; known: {known}", param="id")

    # Decisions

    async def explain(self, request: web.Request) -> web.Response:
        decisions = self._core.decisions()
        request_id = request.query.get("request_id")
        if request_id is not None:
            decisions = _of_request(decisions, request_id)
        limit = _positive(request.query.get("limit", str(DECISIONS_SHOWN)), "limit")
        now = self._clock()
        return json_response({"decisions": [explain(each, now=now) for each in decisions[:limit]]})

    async def route(self, request: web.Request) -> web.Response:
        path = request.query.get("path", "/v1/chat/completions")
        decision = await self._preview(await request.read(), path)
        return json_response({"decision": explain(decision, now=self._clock())})

    # Policy

    async def show_policy(self, request: web.Request) -> web.Response:
        available = {name: _parameters(name) for name in POLICIES}
        return json_response(self._policy() | {"available": available})

    async def change_policy(self, request: web.Request) -> web.Response:
        fields = await _json_object(request)
        name, parameters = fields.get("policy"), fields.get("parameters", {})
        if (
            not isinstance(name, str)
            or not isinstance(parameters, dict)
            or fields.keys() - {"policy", "parameters", "pool"}
        ):
            raise BadRequest('The body must be {"policy": NAME, "parameters": {...}}', param="policy")
        pool = _pool(fields.get("pool"))
        try:
            name, spelled = read_policy(name)
            configured = self._settings.parameters_for(name)
            policy = make_policy(name, {**configured, **spelled, **parameters})
        except PolicyError as error:
            raise BadRequest(str(error), param="policy") from None
        self._core.set_policy(policy, pool)
        _logger.info("the %spolicy is now %s", f"{pool} " if pool else "", spell_policy(policy))
        return json_response(self._policy())

    def _policy(self) -> dict[str, Any]:
        """That of whole workers, and those of the two pools, whether or not there are such workers."""
        policies = self._core.policies
        pools = {pool.value: _shown_policy(policies.of(pool)) for pool in PolicyPool}
        return _shown_policy(policies.policy) | {"pools": pools}


def _shown_policy(policy: Policy) -> dict[str, Any]:
    return {"policy": policy.name, "parameters": dict(policy.parameters), "text": spell_policy(policy)}


def _pool(value: object) -> PolicyPool | None:
    if value is None:
        return None
    if value not in tuple(PolicyPool):
        raise BadRequest(f"pool must be one of {', '.join(PolicyPool)}, not {value!r}", param="pool")
    return PolicyPool(str(value))


def _shown(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"worker": rows[0]} if len(rows) == 1 else {"workers": list(rows)}


def _of_request(decisions: Sequence[Decision], request_id: str) -> list[Decision]:
    """By our id or the client's: one decision for each attempt, and for each request of that name."""
    found = [each for each in decisions if request_id in (each.request_id, each.client_request_id)]
    if not found:
        raise NotKnown(f"No decision for request {request_id!r} is remembered", param="request_id")
    return found


def _parameters(policy: str) -> dict[str, Any]:
    return {
        name: {"default": parameter.default, "allowed": parameter.allowed, "help": parameter.help}
        for name, parameter in parameters_of(policy).items()
    }


async def _json_object(request: web.Request) -> dict[str, Any]:
    try:
        content = orjson.loads(await request.read())
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"The body is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise BadRequest("The body must be a JSON object")
    return content


def _positive(text: str, param: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise BadRequest(f"'{param}' must be a whole number of at least 1, not {text!r}", param=param)
    return int(text)


def _missing(param: str) -> str:
    raise BadRequest(f"'{param}' is missing in the query", param=param)
