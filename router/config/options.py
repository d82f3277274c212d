"""The table of options: flags, environment variables, file keys, help text and docs all come from here.

An option `max_body` is the flag `--max-body`, the variable `KVGATE_MAX_BODY` and the file key `max_body`. Its
default is the one of the field of that name in `Settings`. Aliases are names that users of other routers type;
they mean the same everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from policies import Parameter, parameters_of
from router.config.policy_options import parameter_values, policy_value
from router.config.settings import Settings
from router.config.values import (
    Value,
    boolean,
    byte_size,
    choice,
    duration,
    integer,
    key,
    optional,
    text,
)

ENVIRONMENT_PREFIX = "KVGATE_"
LOG_LEVELS = ("debug", "info", "warning", "error")
ROLES = ("both", "prefill", "decode")


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One thing that can be set. `many` collects values (a `split` one also at spaces and commas); a `secret`
    may be given as `@FILE` and is never shown; `sources` says where it may stand."""

    name: str
    value: Value
    help: str
    group: str
    aliases: tuple[str, ...] = ()
    many: bool = False
    split: bool = False
    secret: bool = False
    sources: frozenset[str] = frozenset({"flag", "environment", "file"})
    kv_parameter: str | None = None
    """The parameter of the kv policy that this option sets; such an option is no field of Settings."""
    default_value: Any = None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)

    @property
    def flag(self) -> str:
        return flag_of(self.name)

    @property
    def variable(self) -> str:
        return variable_of(self.name)

    @property
    def default(self) -> Any:
        return self.default_value if self.kv_parameter else _DEFAULTS[self.name]


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.upper()


def _group(group: str, *rows: dict[str, Any]) -> Iterator[Option]:
    return (Option(group=group, **row) for row in rows)


def _row(name: str, value: Value, help: str, *aliases: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "value": value, "help": help, "aliases": aliases, **more}


def _kv_option(parameter: Parameter) -> Option:
    return Option(
        name=f"kv_{parameter.name}",
        value=parameter_values("kv")[parameter.name],
        help=parameter.help,
        group="kv policy",
        kv_parameter=parameter.name,
        default_value=parameter.default,
    )


_PORT = integer(0, 65535)
_ADDRESS = optional(text(), "none")
_DEFAULTS = {field.name: getattr(Settings(), field.name) for field in fields(Settings)}

OPTIONS: tuple[Option, ...] = (
    *_group(
        "listening",
        _row(
            "config",
            optional(text()),
            "Configuration file, .yaml, .yml or .toml.",
            sources=frozenset({"flag", "environment"}),
        ),
        _row("host", text(), "Address of the public port."),
        _row("port", _PORT, "Public port; 0 takes a free one."),
        _row(
            "admin_host",
            text(),
            "Address of the admin port; other than loopback only with --admin-api-key.",
            "prometheus_host",
        ),
        _row(
            "admin_port",
            _PORT,
            "Admin port: metrics, workers, explain; 0 takes a free one.",
            "prometheus_port",
        ),
    ),
    *_group(
        "workers",
        _row(
            "worker_urls",
            text(),
            "URLs of the workers, separated by spaces or commas, or repeated.",
            "static_backends",
            many=True,
            split=True,
        ),
        _row(
            "workers",
            text(),
            "Workers with values of their own: url, name, kv_events, kv_replay, role, api_key.",
            many=True,
            sources=frozenset({"file"}),
        ),
        _row(
            "kv_events",
            _ADDRESS,
            "Template of the KV event endpoints, such as tcp://{host}:5557; {host}, {port}, {port+N}, {index}.",
        ),
        _row(
            "kv_replay",
            _ADDRESS,
            "Template of the endpoints that replay KV events, such as tcp://{host}:5558.",
        ),
        _row("kv_topic", text(empty=True), "Topic prefix of the KV events to subscribe to; empty takes all."),
        _row("load_monitor_interval", duration(), "How often the workers' own metrics are read."),
        _row("health_check_interval_secs", duration(), "How often each worker's health is probed."),
        _row("health_check_timeout_secs", duration(), "How long a health probe may take."),
    ),
    *_group(
        "routing",
        _row(
            "policy",
            policy_value(),
            "Who decides which worker serves a request.",
            "routing_logic",
        ),
        _row(
            "tokens",
            choice(("auto", "engine", "bytes")),
            "Where a prompt's tokens come from: the worker's /tokenize, blocks of bytes, or whichever the policy can use.",
        ),
        _row("predicted_ttl", duration(), "How long a decision is believed for workers without KV events."),
        _row(
            "bridge_ttl",
            duration(zero=True),
            "How long a decision is believed while the worker's KV event is on its way.",
        ),
        _row(
            "max_retries",
            integer(0),
            "How many other workers are tried when one fails before its first body byte.",
            "retry_max_retries",
        ),
        _row("seed", integer(), "Seed of all chance in routing."),
    ),
    *map(_kv_option, parameters_of("kv").values()),
    *_group(
        "keys",
        _row(
            "api_key",
            key(),
            "Key that clients must show as bearer token; repeatable, or @FILE with one key a line. Never sent to a worker.",
            many=True,
            secret=True,
        ),
        _row("worker_api_key", optional(key()), "Key shown to the workers, or @FILE.", secret=True),
        _row("admin_api_key", optional(key()), "Key that the admin port asks for, or @FILE.", secret=True),
        _row("metrics_without_key", boolean(), "Leave /metrics of the admin port open."),
    ),
    *_group(
        "logs",
        _row("log_level", choice(LOG_LEVELS, {"warn": "warning"}), "How much is logged."),
        _row(
            "access_log",
            optional(choice(("text", "json")), "none"),
            "One line for each request, in this format.",
        ),
    ),
    *_group(
        "limits and times",
        _row("max_body", byte_size(), "Largest request body.", "max_payload_size"),
        _row(
            "max_connections",
            optional(integer(1), "none"),
            "Most client connections; none: what the file descriptor limit allows.",
        ),
        _row("connect_timeout", duration(), "How long connecting to a worker may take."),
        _row("first_byte_timeout", duration(), "How long a worker may take to its first body byte."),
        _row("idle_timeout", duration(), "How long a worker may be silent in the middle of an answer."),
        _row("request_timeout", duration(), "How long a request may take in all.", "request_timeout_secs"),
        _row("client_write_timeout", duration(), "How long a client may take no bytes of its answer."),
        _row(
            "drain_timeout",
            duration(zero=True),
            "How long streams may go on after SIGTERM.",
            "shutdown_grace_period_secs",
        ),
        _row(
            "early_headers",
            boolean(),
            "Send the head of a stream before its first body byte; its worker can't be replaced from then on.",
        ),
    ),
)

WORKER_KEYS: dict[str, Value] = {
    "url": text(),
    "name": optional(text()),
    "kv_events": _ADDRESS,
    "kv_replay": _ADDRESS,
    "role": choice(ROLES),
    "api_key": optional(key()),
}
"""What an entry of `workers:` may say."""

BY_NAME: dict[str, Option] = {name: option for option in OPTIONS for name in option.names}
