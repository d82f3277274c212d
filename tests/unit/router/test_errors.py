"""Errors as clients see them."""

from __future__ import annotations

import orjson

from router import errors
from router.errors import BadRequest, MethodNotAllowed, ModelRequired, Overloaded, RouterError, UnknownModel


def test_body_is_openai_shaped() -> None:
    error = BadRequest("wrong", param="model", code="invalid_type")
    assert orjson.loads(error.body()) == {
        "error": {
            "message": "wrong",
            "type": "invalid_request_error",
            "param": "model",
            "code": "invalid_type",
        }
    }


def test_body_holds_whatever_a_client_sent() -> None:
    assert orjson.loads(BadRequest("\ud800 \x00 é").body())["error"]["message"] == "? \x00 é"


def test_messages_list_what_would_be_right() -> None:
    assert "a, b" in str(UnknownModel("x", ["a", "b"]))
    assert "nothing yet" in str(UnknownModel("x", []))
    assert ModelRequired(["a"]).status == 400
    assert ("allow", "GET, HEAD") in MethodNotAllowed("POST", ("GET", "HEAD")).headers
    assert ("retry-after", "3") in Overloaded("full", retry_after=3).headers


def test_only_workers_errors_are_tried_elsewhere() -> None:
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, RouterError)]
    retryable = [c for c in classes if c.retryable]
    assert retryable
    assert all(issubclass(c, errors.WorkerError) for c in retryable)
    assert all(400 <= c.status < 600 for c in classes)
