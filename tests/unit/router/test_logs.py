"""Logging: levels, and lines that text from outside cannot forge."""

import io
import logging
import re

import orjson
import pytest

from router.access_log import access_log
from router.logs import ACCESS_LOGGER, set_up_logging


@pytest.fixture
def restored_logging():
    loggers = [logging.getLogger(), logging.getLogger(ACCESS_LOGGER)]
    states = [(logger.handlers[:], logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, (handlers, level, propagate) in zip(loggers, states, strict=True):
        logger.handlers[:], logger.propagate = handlers, propagate
        logger.setLevel(level)


@pytest.fixture
def log(restored_logging):
    """Sets logging up and returns what was written."""

    def at(level):
        stream = io.StringIO()
        set_up_logging(level, messages=stream)
        return stream

    return at


def test_a_line_says_when_how_bad_who_and_what(log):
    stream = log("info")
    logging.getLogger("router.fleet").info("worker %s joined", "a")
    time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    assert re.fullmatch(rf"{time} INFO    router\.fleet: worker a joined\n", stream.getvalue())


@pytest.mark.parametrize(("level", "shown"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_less_important_messages_are_left_out(log, level, shown):
    stream = log(level)
    logger = logging.getLogger("router.fleet")
    for say in (logger.debug, logger.info, logger.warning, logger.error):
        say("x")
    assert len(stream.getvalue().splitlines()) == shown


def test_a_message_cannot_forge_a_line(log):
    stream = log("info")
    logging.getLogger("router").info("path %s", "/a\n2026 ERROR forged\x1b[31m é")
    (line,) = stream.getvalue().splitlines()
    assert line.endswith(r"path /a\n2026 ERROR forged\x1b[31m é")


def test_tracebacks_keep_their_lines(log):
    stream = log("info")
    try:
        raise ValueError("boom")
    except ValueError:
        logging.getLogger("router").exception("failed")
    lines = stream.getvalue().splitlines()
    assert lines[-1] == "ValueError: boom"
    assert len(lines) > 2


def test_setting_up_again_replaces_what_was(log):
    log("info")
    stream = log("info")
    logging.getLogger("router").info("once")
    assert len(stream.getvalue().splitlines()) == 1
    assert len(logging.getLogger().handlers) == 1


def test_the_access_log_stands_apart_and_is_not_quieted(restored_logging):
    messages, accesses = io.StringIO(), io.StringIO()
    set_up_logging("error", "text", messages=messages, accesses=accesses)
    access_log("text")({"path": "/v1/models", "status": 200})
    assert accesses.getvalue().endswith(" kvgate.access: path=/v1/models status=200\n")
    assert messages.getvalue() == ""


def test_the_access_log_in_json_is_one_object_a_line(restored_logging):
    accesses = io.StringIO()
    set_up_logging("info", "json", accesses=accesses)
    access_log("json")({"path": "/v1/models\n", "status": 200})
    (line,) = accesses.getvalue().splitlines()
    fields = orjson.loads(line)
    assert fields.pop("time")[-1] == "Z"
    assert fields == {"path": "/v1/models\n", "status": 200}
