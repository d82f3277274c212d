"""The table of public paths: what passes, under which spellings, and what must not."""

import pytest

from router.wire.endpoints import ENDPOINTS, EndpointKind, Protocol, lookup, response_id


@pytest.mark.parametrize(
    ("path", "protocol"),
    [
        ("/v1/chat/completions", Protocol.CHAT),
        ("/v1/completions", Protocol.COMPLETIONS),
        ("/v1/responses", Protocol.RESPONSES),
        ("/v1/messages", Protocol.MESSAGES),
        ("/generate", Protocol.GENERATE),
    ],
)
def test_these_are_routed_by_prompt(path, protocol):
    endpoint = lookup(path)
    assert endpoint is not None
    assert endpoint.protocol is protocol
    assert endpoint.routed_by_prompt


@pytest.mark.parametrize(
    "path", ["/chat/completions", "/v1/generate", "/v1/rerank", "/score", "/v1/tokenize"]
)
def test_both_spellings_are_one_row(path):
    other = path.removeprefix("/v1") if path.startswith("/v1/") else "/v1" + path
    assert lookup(path) is lookup(other) is not None


@pytest.mark.parametrize(
    "path",
    [
        "/sleep",
        "/wake_up",
        "/collective_rpc",
        "/update_weights",
        "/pause",
        "/shutdown",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/reset_prefix_cache",
        "/flush_cache",
        "/start_profile",
        "/server_info",
        "/get_server_info",
        "/metrics",
        "/abort_requests",
        "/mock/fault",
        "/v1",
        "/",
        "",
        "/v1/chat/completions/",
        "//v1/chat/completions",
        "/v1/../sleep",
        "/v1/v2/rerank",
    ],
)
def test_administration_and_unknown_paths_are_absent(path):
    assert lookup(path) is None


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/v1/responses/resp_1", EndpointKind.STORED_RESPONSE),
        ("/v1/responses/resp_1/cancel", EndpointKind.STORED_RESPONSE),
        ("/v1/models", EndpointKind.MODELS),
        ("/v1/models/org/name", EndpointKind.MODEL),
        ("/v1/audio/transcriptions", EndpointKind.MULTIPART),
        ("/healthz", EndpointKind.LIVE),
        ("/readyz", EndpointKind.READY),
        ("/version", EndpointKind.INFO),
        ("/v1/realtime", EndpointKind.TUNNEL),
    ],
)
def test_kinds(path, kind):
    endpoint = lookup(path)
    assert endpoint is not None
    assert endpoint.kind is kind


@pytest.mark.parametrize(
    "path", ["/v1/responses/", "/v1/responses//cancel", "/v1/responses/a/b", "/v1/responses/a/cancel/now"]
)
def test_a_stored_response_has_one_name_without_slashes(path):
    assert lookup(path) is None


def test_cancel_is_posted_and_reading_is_not():
    assert lookup("/v1/responses/resp_1/cancel").methods == ("POST",)
    assert "POST" not in lookup("/v1/responses/resp_1").methods


@pytest.mark.parametrize("suffix", ["", "/cancel", "/input_items"])
def test_the_name_of_a_stored_response(suffix):
    assert response_id("/v1/responses/resp_1" + suffix) == "resp_1"


def test_every_row_of_the_table_is_found_by_its_path():
    assert all(lookup(path) is endpoint for path, endpoint in ENDPOINTS.items())
