"""The admin port: each call, who may make it, and that every error is JSON in one shape."""

import re
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from aiohttp.test_utils import TestClient, TestServer

from policies import POLICIES, make_policy
from router.admin import build_admin_app
from router.admin.explain import explain
from router.config import Settings
from router.core.outcome import Outcome
from router.discovery import WrongWorker
from router.errors import BadRequest
from router.metrics import Metrics
from tests.support.fleets import make_core, prompt_of, request, silent

PROMPT = prompt_of(range(64))
DOCUMENTATION = Path(__file__).parents[3] / "docs" / "admin.md"


class FakeFleet:
    """Workers of a core, added and removed at once; those whose URL holds "slow" have not answered yet."""

    def __init__(self, core):
        self.core = core
        self.options = {}
        self.pending = {}

    async def add_worker(self, url, **options):
        if "bad" in url:
            raise WrongWorker([("url", "it is bad")])
        self.options = options
        worker_id = options.get("name", url.removeprefix("http://"))
        if "slow" in url:
            self.pending[worker_id] = url
        else:
            self._reconcile([*self._workers(), silent(worker_id, url=url)])
        return worker_id

    async def remove_worker(self, worker_id):
        gone = [row["id"] for row in self.views() if worker_id in (row["id"], row["server"])]
        self._reconcile([each for each in self._workers() if each.id not in gone])

    def views(self):
        pending = [row(worker_id, url, "pending") for worker_id, url in self.pending.items()]
        return [row(each.id, each.url) for each in self._workers()] + pending

    async def engine_metrics(self):
        return 'vllm:num_requests_running{worker="a"} 1\n'

    def _workers(self):
        return [view.worker for view in self.core.workers()]

    def _reconcile(self, workers):
        self.core.reconcile(workers, now=0.0)


def row(worker_id, url, state="healthy"):
    return {"id": worker_id, "server": worker_id.partition("@")[0], "url": url, "state": state}


@pytest.fixture
def core():
    return make_core([silent("a"), silent("b")])


@pytest.fixture
def fleet(core):
    return FakeFleet(core)


@pytest.fixture
async def open_client(core, fleet):
    """Opens a client for an admin app with the given settings."""
    clients = []

    async def open_with(**changes):
        async def explain_body(body, path):
            if body == b"nonsense":
                raise BadRequest("The body is not JSON")
            return core.preview(request(path), PROMPT, now=1.0)

        metrics = Metrics()
        metrics.watch(core)
        app = build_admin_app(
            core=core,
            fleet=fleet,
            metrics=metrics,
            settings=Settings(**changes),
            explain_body=explain_body,
            clock=lambda: 3.5,
        )
        client = TestClient(TestServer(app))
        clients.append(client)
        await client.start_server()
        return client

    yield open_with
    for client in clients:
        await client.close()


@pytest.fixture
async def client(open_client):
    return await open_client()


async def ok(response, status=200):
    assert response.status == status, await response.text()
    return await response.json()


async def error(response, status):
    assert response.status == status
    assert response.content_type == "application/json"
    content = await response.json()
    assert content.keys() == {"error"}
    assert content["error"].keys() == {"message", "type", "param", "code"}
    return content["error"]


# Metrics and health


async def test_health(client):
    assert await ok(await client.get("/health")) == {"status": "ok"}


async def test_metrics_are_prometheus_text(client):
    response = await client.get("/metrics")
    assert response.status == 200
    assert response.headers["Content-Type"].startswith("text/plain; version=")
    assert 'kvgate_worker_up{worker="a"} 1.0' in await response.text()


async def test_engine_metrics_are_the_workers_own(client):
    response = await client.get("/engine_metrics")
    assert await response.text() == 'vllm:num_requests_running{worker="a"} 1\n'


# Workers


async def test_workers_are_listed_and_shown(client):
    listed = await ok(await client.get("/workers"))
    assert listed == {"workers": [row("a", "http://a:8000"), row("b", "http://b:8000")]}
    assert await ok(await client.get("/workers/b")) == {"worker": row("b", "http://b:8000")}
    assert await ok(await client.get("/list_workers")) == {"urls": ["http://a:8000", "http://b:8000"]}


async def test_a_worker_is_added_with_values_of_its_own(client, core, fleet):
    body = {"url": "http://c:8000", "name": "c", "kv_events": "tcp://c:5557", "role": "decode"}
    added = await ok(await client.post("/workers", json=body), status=201)
    assert added == {"worker": row("c", "http://c:8000")}
    assert fleet.options == {"name": "c", "kv_events": "tcp://c:5557", "role": "decode"}
    assert core.slot_of("c") is not None


async def test_a_worker_that_does_not_answer_yet_is_accepted(client):
    added = await ok(await client.post("/workers", json={"url": "http://slow"}), status=202)
    assert added == {"worker": row("slow", "http://slow", "pending")}


@pytest.mark.parametrize("method", ["get", "post"])
async def test_a_worker_is_added_and_removed_by_url_as_older_routers_have_it(client, core, method):
    call = getattr(client, method)
    await ok(await call("/add_worker", params={"url": "http://c:8000"}), status=201)
    assert core.worker("c:8000").worker.url == "http://c:8000"
    assert await ok(await call("/remove_worker", params={"url": "http://c:8000/"})) == {"removed": "c:8000"}
    assert core.worker("c:8000") is None


async def test_a_worker_is_removed_with_its_bookings(client, core):
    decision = core.route(request("r"), PROMPT, now=1.0)
    removed = await ok(await client.delete(f"/workers/{decision.worker.id}"))
    assert removed == {"removed": decision.worker.id}
    core.check()
    assert sum(view.num_active_requests for view in core.workers()) == 0


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (b"{", "not JSON"),
        (b"[]", "JSON object"),
        (b"{}", "worker: must be a URL, or a mapping with a url"),
        (b'{"url": ""}', "worker.url: must be a URL"),
        (b'{"url": "http://c", "rol": "x"}', "worker.rol: unknown (did you mean role?)"),
        (b'{"url": "http://c", "role": "x"}', "must be one of both, prefill, decode"),
        (b'{"url": "http://c", "api_key": "@/etc/passwd"}', "files are read at the start only"),
        (b'{"url": "http://bad"}', "url: it is bad"),
    ],
)
async def test_workers_that_cannot_be_added(client, core, body, part):
    wrong = await error(await client.post("/workers", data=body), 400)
    assert part in wrong["message"]
    assert len(core.workers()) == 2


async def test_workers_that_are_not_known(client):
    for call in (client.get("/workers/x"), client.delete("/workers/x"), client.post("/remove_worker?url=x")):
        wrong = await error(await call, 404)
        assert wrong["message"] == "No worker 'x'; known: a, b"
    assert (await error(await client.get("/remove_worker"), 400))["param"] == "url"


# Decisions


async def test_a_decision_is_explained_by_its_request(client, core):
    core.route(request("first"), PROMPT, now=1.0)
    core.route(request("second"), PROMPT, now=2.0)
    (explained,) = (await ok(await client.get("/explain", params={"request_id": "second"})))["decisions"]
    assert explained["request_id"] == "second"
    assert explained["policy"] == "kv"
    assert explained["trust"] == "predicted"
    assert [each["worker"] for each in explained["candidates"]] == ["a", "b"]
    chosen, other = sorted(explained["candidates"], key=lambda each: not each["chosen"])
    assert chosen["worker"] == explained["worker"]
    assert chosen["device_overlap"] == 4
    assert chosen["cost"] <= other["cost"]
    assert explained["text"] == (
        f"{explained['worker']} was chosen of 2 candidates by kv ({explained['reason']}); "
        f"its cost is {chosen['cost']:.1f}, the best other is {other['worker']} with {other['cost']:.1f}; "
        "48 of 64 prompt tokens were expected in its cache (predicted)."
    )


def test_a_cost_in_milliseconds_is_the_sum_of_its_terms(core):
    core.set_policy(make_policy("latency"))
    core.route(request("first"), PROMPT, now=1.0)
    explained = explain(core.route(request("r"), PROMPT, now=1.0), now=2.0)
    for row in explained["candidates"]:
        assert list(row["terms"]) == ["wait", "memory", "prefill", "steps", "later", "streams"]
        assert sum(row["terms"].values()) == pytest.approx(row["cost"])
        assert row["engine"]["prefill_ms"] == {"base": 15.0, "token": 0.1, "pair": 2e-7}
        assert row["engine"]["arrivals_per_second"] == pytest.approx(1 / 20 / 2)
    assert " ms, the best other is " in explained["text"]
    assert orjson.loads(orjson.dumps(explained)) == explained


def test_the_documentation_has_every_field_of_a_decision(core):
    core.set_policy(make_policy("latency"))
    explained = explain(core.route(request("r"), PROMPT, now=1.0), now=2.0)
    documented = DOCUMENTATION.read_text(encoding="utf-8")
    names = [*explained, *explained["candidates"][0], *explained["details"]]
    assert [name for name in names if f"`{name}`" not in documented] == []


async def test_decisions_are_found_by_the_name_that_the_client_gave(client, core):
    for number, name in enumerate(["mine", "other", "mine"]):
        core.route(replace(request(f"r{number}"), client_request_id=name), PROMPT, now=1.0)
    found = (await ok(await client.get("/explain", params={"request_id": "mine"})))["decisions"]
    assert [each["request_id"] for each in found] == ["r2", "r0"]
    assert {each["client_request_id"] for each in found} == {"mine"}


async def test_every_attempt_of_a_request_is_found(client, core):
    core.route(request("r"), PROMPT, now=1.0)
    core.finish("r", Outcome.WORKER_FAILED, now=1.1)
    core.route(request("r"), PROMPT, now=1.2, exclude={"a"}, attempt=1)
    found = (await ok(await client.get("/explain", params={"request_id": "r"})))["decisions"]
    assert [each["attempt"] for each in found] == [1, 0]


async def test_the_last_decisions_come_newest_first(client, core):
    for number in range(30):
        core.route(request(f"r{number}"), PROMPT, now=1.0)
    shown = (await ok(await client.get("/explain")))["decisions"]
    assert [each["request_id"] for each in shown] == [f"r{number}" for number in range(29, 9, -1)]
    shown = (await ok(await client.get("/explain", params={"limit": 2})))["decisions"]
    assert [each["request_id"] for each in shown] == ["r29", "r28"]


def test_a_decision_without_costs_is_explained_without():
    core = make_core([silent("a")], "random")
    core.route(replace(request("r"), num_prompt_tokens=64), None, now=1.0, attempt=1)
    explained = explain(core.decision("r"), now=3.5)
    assert explained["seconds_ago"] == 2.5
    assert explained["candidates"][0]["cost"] is None
    assert explained["text"] == (
        "a was chosen of 1 candidate by random (uniformly at random); "
        "0 of 64 prompt tokens were expected in its cache (predicted); 1 attempt had failed before."
    )


async def test_decisions_that_are_not_known(client):
    wrong = await error(await client.get("/explain", params={"request_id": "x"}), 404)
    assert wrong["param"] == "request_id"
    for limit in ("0", "-1", "x", "²"):
        assert (await error(await client.get("/explain", params={"limit": limit}), 400))["param"] == "limit"


async def test_route_decides_without_booking(client, core):
    decided = (await ok(await client.post("/route", data=b"{}")))["decision"]
    assert decided["request_id"] == "/v1/chat/completions"
    decided = (await ok(await client.post("/route?path=/generate", data=b"{}")))["decision"]
    assert decided["request_id"] == "/generate"
    assert core.decisions() == []
    assert sum(view.num_active_requests for view in core.workers()) == 0


async def test_route_reports_what_is_wrong_with_the_body(client):
    assert (await error(await client.post("/route", data=b"nonsense"), 400))[
        "message"
    ] == "The body is not JSON"


# Policy


async def test_the_policy_is_shown_with_what_it_could_be(client):
    shown = await ok(await client.get("/policy"))
    assert shown["policy"] == "kv"
    assert shown["parameters"]["temperature"] == 0.0
    assert shown["available"].keys() == POLICIES.keys()
    assert shown["available"]["kv"]["host_cache_hit_weight"]["allowed"] == "a number from 0 to 1"


async def test_the_policy_changes_while_running(client, core):
    changed = await ok(
        await client.put("/policy", json={"policy": "kvaware", "parameters": {"temperature": 0.5}})
    )
    assert changed["parameters"]["temperature"] == core.policy.parameters["temperature"] == 0.5
    assert (await ok(await client.put("/policy", json={"policy": "random"})))["policy"] == core.policy.name
    assert core.policy.name == "random"


async def test_each_pool_may_have_a_policy_of_its_own(client, core):
    body = {"policy": "round_robin", "pool": "prefill"}
    shown = await ok(await client.put("/policy", json=body))
    assert shown["policy"] == "kv"
    assert {pool: each["policy"] for pool, each in shown["pools"].items()} == {
        "prefill": "round_robin",
        "decode": "kv",
    }
    assert core.policies.prefill.name == "round_robin"
    refused = await error(await client.put("/policy", json={"policy": "kv", "pool": "both"}), 400)
    assert refused["message"] == "pool must be one of prefill, decode, not 'both'"


async def test_a_policy_is_taken_and_shown_as_it_is_written_on_the_command_line(client):
    changed = await ok(
        await client.put(
            "/policy", json={"policy": "kv,temperature=0.5", "parameters": {"prefill_load_scale": 8}}
        )
    )
    assert changed["text"] == "kv,prefill_load_scale=8,temperature=0.5"


async def test_configured_parameters_hold_when_a_policy_comes_back(open_client, core):
    client = await open_client(policy_parameters={"kv": {"temperature": 0.25, "prefill_load_scale": 2.0}})
    changed = await ok(
        await client.put("/policy", json={"policy": "kvaware", "parameters": {"temperature": 0.5}})
    )
    assert changed["parameters"]["temperature"] == 0.5
    assert changed["parameters"]["prefill_load_scale"] == 2.0


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ({}, "The body must be"),
        ({"policy": 1}, "The body must be"),
        ({"policy": "kv", "parameters": []}, "The body must be"),
        ({"policy": "kv", "weights": {}}, "The body must be"),
        ({"policy": "best"}, "round_robin"),
        ({"policy": "kv,weight=1"}, "overlap_score_credit"),
        ({"policy": "kv", "parameters": {"weight": 1}}, "overlap_score_credit"),
        ({"policy": "kv", "parameters": {"host_cache_hit_weight": 2}}, "a number from 0 to 1"),
    ],
)
async def test_policies_that_cannot_be(client, core, body, part):
    before = core.policy
    assert part in (await error(await client.put("/policy", json=body), 400))["message"]
    assert core.policy is before


# Errors of HTTP


async def test_unknown_paths_are_told_what_there_is(client):
    wrong = await error(await client.get("/nowhere"), 404)
    assert wrong["code"] == "unknown_path"
    assert "/explain" in wrong["message"]
    assert "/workers/{id}" in wrong["message"]


async def test_wrong_methods_are_told_the_right_ones(client):
    response = await client.post("/policy")
    assert response.headers["Allow"] == "GET, PUT"
    assert (await error(response, 405))["code"] == "method_not_allowed"


async def test_bodies_are_bounded(open_client):
    client = await open_client(max_body=100)
    assert (await error(await client.post("/route", data=b"x" * 101), 413))["code"] == "body_too_large"


async def test_a_defect_is_an_error_like_any_other_and_is_logged(client, fleet, caplog):
    fleet.views = None
    assert (await error(await client.get("/workers"), 500))["code"] == "internal_error"
    assert "admin call GET /workers failed" in caplog.text


# Access

READS = [
    "/health",
    "/metrics",
    "/workers",
    "/explain",
    "/policy",
    "/engine_metrics",
    "/list_workers",
    "/nowhere",
]


@pytest.mark.parametrize("path", READS)
@pytest.mark.parametrize("shown", [None, "Bearer wrong", "Bearer", "Basic secret", "secret", "Bearer sécret"])
async def test_with_an_admin_key_nothing_is_shown_without_it(open_client, path, shown):
    client = await open_client(admin_api_key="secret")
    headers = {} if shown is None else {"Authorization": shown}
    response = await client.get(path, headers=headers)
    assert response.headers["WWW-Authenticate"] == "Bearer"
    assert (await error(response, 401))["type"] == "authentication_error"


async def test_the_admin_key_opens_every_call(open_client):
    client = await open_client(admin_api_key="secret")
    for path in READS[:-1]:
        response = await client.get(path, headers={"Authorization": "bearer secret"})
        assert response.status == 200


async def test_metrics_alone_may_be_left_open(open_client):
    client = await open_client(admin_api_key="secret", metrics_without_key=True)
    assert (await client.get("/metrics")).status == 200
    assert (await client.get("/workers")).status == 401


async def test_web_pages_are_kept_out_of_a_port_without_a_key(client, core):
    headers = {"Sec-Fetch-Site": "cross-site"}
    response = await client.get("/add_worker", params={"url": "http://evil"}, headers=headers)
    assert (await error(response, 403))["code"] == "forbidden"
    response = await client.post("/workers", json={"url": "http://evil"}, headers={"Origin": "http://evil"})
    assert (await error(response, 403))["code"] == "forbidden"
    response = await client.get("/workers", headers={"Host": "rebound.example:9190"})
    assert (await error(response, 403))["code"] == "forbidden"
    assert len(core.workers()) == 2


@pytest.mark.parametrize("host", ["localhost:9190", "127.0.0.1", "[::1]:9190"])
async def test_local_names_are_let_in(client, host):
    assert (await client.get("/health", headers={"Host": host})).status == 200


# Documentation


async def test_the_documentation_lists_every_call(client):
    text = DOCUMENTATION.read_text(encoding="utf-8")
    documented = re.findall(r"`([A-Z]+ /[a-z_/{}]+)`", text[: text.index("## Access")])
    calls = [
        f"{route.method} {route.resource.canonical}"
        for route in client.server.app.router.routes()
        if route.method != "HEAD"
    ]
    assert sorted(documented) == sorted(calls)
