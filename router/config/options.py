"""The table of options: flags, environment variables, file keys, help text and docs all come from here.

An option `max_body` is the flag `--max-body`, the variable `KVGATE_MAX_BODY` and the file key `max_body`. Its
default is that of the field of the same name in `Settings`. Aliases are names that users of other routers
type; they mean the same in every source.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial

from indexer.blocks import HASHINGS
from policies import POLICIES, Parameter, parameters_of
from router.config.settings import Settings
from router.config.values import (
    Value,
    boolean,
    byte_size,
    choice,
    duration,
    integer,
    key,
    number,
    optional,
    text,
)
from router.core.disagg import Mode

ENVIRONMENT_PREFIX = "KVGATE_"
LOG_LEVELS = ("debug", "info", "warning", "error")
ROLES = ("both", "prefill", "decode")
CONNECTORS = ("nixl", "mooncake", "p2p", "store")
"""Of `router.hand_over.PROTOCOLS`, those that vLLM's connectors speak."""

EVERYWHERE = frozenset({"flag", "environment", "file"})
NOT_IN_FILE = frozenset({"flag", "environment"})
FILE_ONLY = frozenset({"file"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One thing that can be set.

    `many` collects values, a `split` one also at spaces and commas. A `secret` may be given as `@FILE` and
    is never shown. `sources` says where the option may stand. `parameter` is the policy and the name of the
    parameter that it sets; every other option is a field of Settings.
    """

    name: str
    value: Value
    help: str
    group: str
    default: object
    aliases: tuple[str, ...] = ()
    many: bool = False
    split: bool = False
    secret: bool = False
    sources: frozenset[str] = EVERYWHERE
    parameter: tuple[str, str] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.upper()


def parameter_values(policy: str) -> dict[str, Value]:
    """What the parameters of that policy may be, by name."""
    return {name: _parameter_value(parameter) for name, parameter in parameters_of(policy).items()}


_DEFAULTS = {field.name: getattr(Settings(), field.name) for field in fields(Settings)}


def _option(
    group: str,
    name: str,
    value: Value,
    help: str,
    *aliases: str,
    many: bool = False,
    split: bool = False,
    secret: bool = False,
    sources: frozenset[str] = EVERYWHERE,
) -> Option:
    return Option(
        name=name,
        value=value,
        help=help,
        group=group,
        default=_DEFAULTS[name],
        aliases=aliases,
        many=many,
        split=split,
        secret=secret,
        sources=sources,
    )


def _parameter_option(policy: str, parameter: Parameter, name: str) -> Option:
    return Option(
        name=name,
        value=_parameter_value(parameter),
        help=parameter.help,
        group=f"{policy} policy",
        default=parameter.default,
        parameter=(policy, parameter.name),
    )


def _parameter_value(parameter: Parameter) -> Value:
    if parameter.words:
        return choice(parameter.words, {word.replace("-", "_"): word for word in parameter.words})
    return boolean() if parameter.is_switch else number(parameter.minimum, parameter.maximum)


_listening: Callable[..., Option] = partial(_option, "listening")
_workers: Callable[..., Option] = partial(_option, "workers")
_routing: Callable[..., Option] = partial(_option, "routing")
_disagg: Callable[..., Option] = partial(_option, "prefill and decode apart")
_keys: Callable[..., Option] = partial(_option, "keys")
_logs: Callable[..., Option] = partial(_option, "logs")
_limits: Callable[..., Option] = partial(_option, "limits and times")

_port = integer(0, 65535, metavar="PORT")
_address = text("a host name or an IP address", metavar="ADDRESS")
_template = optional(text("an endpoint such as tcp://{host}:5557", metavar="TEMPLATE"), "none")
_url = text("a URL: http://host:8000, https://host:8443 or unix:/path/to.sock", metavar="URL")
_file = optional(text("a path", metavar="FILE"))
_policy = text(
    "one of " + ", ".join(POLICIES) + ", with parameters as in NAME,key=value,...", metavar="POLICY"
)
_modes = choice(tuple(Mode))
_connector = choice(CONNECTORS)
_address_of_kv = text("host:port", metavar="HOST:PORT")
_pool = text("a URL, with values as in URL,bootstrap_port=8998", metavar="URL[,key=value...]")
_tokens = choice(("auto", "local", "engine", "bytes"))
_tokenizer = text("a directory, a tokenizer.json or a model of the local hub cache", metavar="[MODEL=]PLACE")
_chat_template = text("a file", metavar="[MODEL=]FILE")
_block_hash = choice(tuple(HASHINGS))
_log_level = choice(LOG_LEVELS, {"warn": "warning"})
_access_log = optional(choice(("text", "json")), "none")

# fmt: off
OPTIONS: tuple[Option, ...] = (
    _listening("config", optional(text("a path", metavar="FILE")),
               "Configuration file: .yaml, .yml or .toml.", sources=NOT_IN_FILE),
    _listening("host", _address, "Address of the public port."),
    _listening("port", _port, "Public port; 0 takes a free one."),
    _listening("admin_host", _address, "Address of the admin port; beyond loopback only with an admin key.",
               "prometheus_host"),
    _listening("admin_port", _port, "Port of metrics, workers and explain; 0 takes a free one.",
               "prometheus_port", "metrics_port"),
    _listening("tls_cert", _file, "Serve TLS with this certificate (PEM, with its chain); read anew when it "
               "changes.", "ssl_certfile", "tls_cert_path"),
    _listening("tls_key", _file, "Its private key (PEM, without a password).", "ssl_keyfile", "tls_key_path"),

    _workers("worker_urls", _url, "The workers, separated by spaces or commas, or repeated.",
             "static_backends", many=True, split=True),
    _workers("workers", text("URLs, or mappings as below"), "Workers with values of their own.", many=True,
             sources=FILE_ONLY),
    _workers("kv_events", _template, "Where workers publish KV events, such as tcp://{host}:5557; {host}, "
             "{port}, {port+N}, {index} and {rank} are filled in for each worker. None: where it announces."),
    _workers("kv_replay", _template, "Where they replay KV events after a gap, such as tcp://{host}:5558."),
    _workers("kv_topic", text("text", empty=True, metavar="PREFIX"),
             "Topic of the KV events; empty takes all."),
    _workers("worker_ca", _file, "Who vouches for the certificates of https workers (PEM); else those whom "
             "the system trusts."),
    _workers("worker_cert", _file, "Certificate to show to https workers that ask for one (PEM)."),
    _workers("worker_key", _file, "Its private key (PEM, without a password)."),
    _workers("worker_insecure", boolean(), "Do not check the certificates of https workers."),
    _workers("load_monitor_interval", duration(), "How often the workers' own metrics are read.",
             "engine_stats_interval"),
    _workers("health_check_interval_secs", duration(), "How often the health of each worker is probed."),
    _workers("health_check_timeout_secs", duration(), "How long such a probe may take."),

    _routing("policy", _policy, "Who decides which worker serves a request.", "routing_logic"),
    _routing("tokens", _tokens, "Where the tokens of a prompt come from: made here (local), the worker's "
             "/tokenize (engine), blocks of bytes (bytes), or the first of these that serves (auto)."),
    _routing("tokenizer", _tokenizer, "A directory, a tokenizer.json, or a model in the local hub cache "
             "(nothing is downloaded); for one model as MODEL=PLACE, repeatable.", many=True),
    _routing("chat_template", _chat_template, "A file with a chat template in place of the tokenizer's; for "
             "one model as MODEL=FILE, repeatable.", many=True),
    _routing("block_hash", _block_hash, "How blocks are hashed: by kvgate's own hash, or as NVIDIA Dynamo "
             "does, to compare indexes with its routers."),
    _routing("predicted_ttl", duration(), "How long a decision is believed where no KV events come."),
    _routing("bridge_ttl", duration(zero=True), "How long it is believed while the KV event is on its way."),
    _routing("index_max_bytes", byte_size(), "Memory for what KV events tell; beyond it the ends of the "
             "prompts that were gone on with least lately are forgotten."),
    _routing("snapshot", _file, "Begin with what this file knows of the workers, and write it now and then "
             "and at the end."),
    _routing("snapshot_interval", duration(), "How long between two writings of the snapshot."),
    _routing("warm_from", optional(text("a URL such as http://peer:9190", metavar="URL")),
             "Begin with what the admin port or the kvgate index there knows; the admin key is shown to it."),
    _routing("max_retries", integer(0), "Other workers to try when one fails before its first body byte.",
             "retry_max_retries", "max_instance_failover_reroute_attempts"),
    _routing("seed", integer(), "Seed of all chance in routing."),

    _disagg("prefill", _pool, "Workers that only compute prompts, repeatable; behind the URL a bootstrap "
            "port (URL,8998) and keys of `workers:`.", many=True),
    _disagg("decode", _pool, "Workers that decode what prefill workers have computed, likewise.", many=True),
    _disagg("kv_connector", _connector, "How KV is handed over between vLLM workers, which do not tell."),
    _disagg("prefill_policy", optional(_policy), "Who decides which prefill worker computes a prompt; else "
            "--policy."),
    _disagg("decode_policy", optional(_policy), "Who decides which worker decodes; else --policy."),
    _disagg("disagg", _modes, "When a prefill worker computes the prompt of a decode worker's request."),
    _disagg("disagg_min_tokens", integer(0), "conditional: from so many uncached tokens on, always."),
    _disagg("disagg_ratio", number(0.0), "conditional: when that share of the prompt or more is not cached."),
    _disagg("disagg_prefill_busy_tokens", optional(integer(1), "none"), "Not when every prefill worker has "
            "so many prompt tokens waiting."),
    _disagg("disagg_decode_usage_max", optional(number(0.0, 1.0), "none"), "Always when more of the decode "
            "worker's KV cache than that would be in use."),
    _disagg("disagg_fallback", boolean(), "A prompt that no prefill worker computes is computed by the "
            "decode worker, where it can."),
    _disagg("hand_over_lease", duration(), "For so long prefill workers keep what they have computed (vLLM's "
            "kv_lease_duration)."),

    *(_parameter_option("latency", each, each.name) for each in parameters_of("latency").values()),
    *(_parameter_option("kv", each, f"kv_{each.name}") for each in parameters_of("kv").values()),

    _keys("api_key", key(), "Key that clients must show as bearer token, never sent to a worker; repeatable, "
          "or @FILE with one a line.", many=True, secret=True),
    _keys("worker_api_key", optional(key()), "Key shown to the workers, or @FILE.", secret=True),
    _keys("admin_api_key", optional(key()), "Key that the admin port asks for, or @FILE.", secret=True),
    _keys("metrics_without_key", boolean(), "Leave /metrics of the admin port open."),

    _logs("log_level", _log_level, "The least important messages to log."),
    _logs("access_log", _access_log, "Write one line for each request to standard output, in this format."),

    _limits("max_body", byte_size(), "The largest request body.", "max_payload_size"),
    _limits("max_connections", optional(integer(1), "none"),
            "The most client connections; none: what the limit on file descriptors allows."),
    _limits("connect_timeout", duration(), "How long connecting to a worker may take."),
    _limits("first_byte_timeout", duration(), "How long a worker may be silent before its first body byte."),
    _limits("idle_timeout", duration(), "How long a worker may be silent in the middle of an answer."),
    _limits("request_timeout", duration(), "How long a request may take in all.", "request_timeout_secs"),
    _limits("client_write_timeout", duration(), "How long a client may take no bytes of its answer."),
    _limits("drain_timeout", duration(zero=True), "How long streams may go on after SIGTERM.",
            "shutdown_grace_period_secs"),
    _limits("early_headers", boolean(), "Send the head of a stream before its first body byte; from then on "
            "its worker can't be replaced."),
)
# fmt: on

BY_NAME: dict[str, Option] = {name: option for option in OPTIONS for name in option.names}

WORKER_KEYS: dict[str, Value] = {
    "url": _url,
    "name": optional(text("a name")),
    "kv_events": _template,
    "kv_replay": _template,
    "role": choice(ROLES),
    "bootstrap_port": optional(integer(1, 65535, metavar="PORT"), "none"),
    "kv_address": optional(_address_of_kv),
    "connector": optional(_connector),
    "api_key": optional(key()),
}
"""What an entry of `workers:` in a file may say."""
