"""Logging: levels, and lines that text from outside cannot forge."""

import io
import logging

import pytest

from router.logs import set_up_logging


@pytest.fixture
def restored_logging():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def log(restored_logging):
    """Sets logging up and returns what was written."""

    def at(level):
        stream = io.StringIO()
        set_up_logging(level, stream)
        return stream

    return at


def test_a_line_says_when_how_bad_who_and_what(log):
    stream = log("info")
    logging.getLogger("router.fleet").info("worker %s joined", "a")
    line = stream.getvalue()
    assert line.endswith(" INFO    router.fleet: worker a joined\n")
    assert line[10] == "T"


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
