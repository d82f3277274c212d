"""Configuration: sources and their precedence, every mistake at once, the table against docs and examples."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from policies import make_policy, parameters_of
from router.config import ConfigErrors, Settings, WorkerConfig, load, load_or_exit
from router.config.help import default_words
from router.config.options import BY_NAME, OPTIONS, WORKER_KEYS, flag_of, variable_of

ROOT = Path(__file__).parents[3]


def settings_of(*argv, environ=None, files=None):
    return load(argv, environ or {}, reader_of(files or {}))


def mistakes_of(*argv, environ=None, files=None):
    with pytest.raises(ConfigErrors) as raised:
        settings_of(*argv, environ=environ, files=files)
    return [str(mistake) for mistake in raised.value.mistakes]


def reader_of(files):
    def read(path):
        if path not in files:
            raise FileNotFoundError(2, "No such file or directory", path)
        return files[path]

    return read


def with_yaml(text, *argv, **more):
    return settings_of("--config", "k.yaml", *argv, files={"k.yaml": text}, **more)


def mistakes_in_yaml(text, *argv, **more):
    return mistakes_of("--config", "k.yaml", *argv, files={"k.yaml": text}, **more)


# The table


def test_every_setting_has_an_option_and_every_option_sets_something():
    options = {option.name for option in OPTIONS if option.parameter is None}
    assert options == {field.name for field in fields(Settings)} - {"policy_parameters"}


def test_kv_flags_are_the_parameters_of_the_kv_policy():
    flags = {option.name for option in OPTIONS if option.parameter and option.parameter[0] == "kv"}
    assert flags == {f"kv_{name}" for name in parameters_of("kv")}


def test_the_goal_is_the_latency_policy_s_whatever_is_in_force():
    settings = settings_of("--goal", "Throughput")
    assert settings.policy == "kv"
    assert settings.parameters_for("latency") == {"goal": "throughput"}
    assert mistakes_of("--goal", "fast") == [
        "--goal: must be one of first-token, balanced, throughput, not 'fast'"
    ]


def test_names_and_aliases_are_used_once():
    names = [name for option in OPTIONS for name in option.names]
    assert len(names) == len(set(names)) == len(BY_NAME)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_each_default_is_allowed(option):
    if option.many:
        assert option.default == ()
    else:
        assert option.value.parse(option.default) == option.default


# Sources


def test_nothing_given_is_all_defaults():
    assert settings_of() == Settings()


def test_flags_win_over_environment_over_file():
    file = "port: 1\nmax_retries: 1\nseed: 1\n"
    environ = {"KVGATE_CONFIG": "k.yaml", "KVGATE_MAX_RETRIES": "2", "KVGATE_SEED": "2"}
    settings = settings_of("--seed", "3", environ=environ, files={"k.yaml": file})
    assert (settings.port, settings.max_retries, settings.seed) == (1, 2, 3)


def test_a_list_of_a_stronger_source_replaces_the_whole_list():
    assert with_yaml("worker_urls: [http://a, http://b]", "--worker-urls", "http://c").worker_urls == (
        "http://c",
    )


@pytest.mark.parametrize(
    "argv",
    [
        ["--worker-urls", "http://a", "http://b"],
        ["--worker-urls", "http://a,http://b"],
        ["--worker-urls", "http://a, http://b"],
        ["--worker-urls=http://a", "--worker-urls=http://b"],
        ["--static-backends", "http://a,http://b"],
    ],
)
def test_worker_urls_take_spaces_commas_and_repetitions(argv):
    assert settings_of(*argv).worker_urls == ("http://a", "http://b")


def test_worker_urls_from_the_environment_and_a_file():
    assert settings_of(environ={"KVGATE_WORKER_URLS": "http://a http://b"}).worker_urls == (
        "http://a",
        "http://b",
    )
    assert with_yaml("worker_urls: http://a http://b").worker_urls == ("http://a", "http://b")


@pytest.mark.parametrize(
    "option",
    [option for option in OPTIONS if option.aliases and not option.name.startswith("tls_")],
    ids=lambda o: o.name,
)
def test_aliases_mean_the_same_in_every_source(option):
    samples = {"policy": "random", "worker_urls": "http://a", "admin_host": "::1"}
    sample = samples.get(option.name, "127")
    expected = settings_of(flag_of(option.name), sample)
    for alias in option.aliases:
        assert settings_of(flag_of(alias), sample) == expected
        assert settings_of(environ={variable_of(alias): sample}) == expected
        file = f"{alias.replace('_', '-')}: '{sample}'"
        assert getattr(with_yaml(file), option.name) == getattr(expected, option.name)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("k.yaml", "port: 81\nmax-body: 1MiB\n"),
        ("k.yml", "port: 81\nmax_body: 1MiB\n"),
        ("k.toml", 'port = 81\nmax-body = "1MiB"\n'),
    ],
)
def test_files_are_yaml_or_toml_by_suffix(path, text):
    settings = settings_of("--config", path, files={path: text})
    assert (settings.port, settings.max_body, settings.config) == (81, 1 << 20, path)


def test_an_empty_file_is_fine():
    assert with_yaml("# nothing yet\n").port == Settings().port


def test_variables_of_the_projects_other_tools_are_left_alone():
    assert settings_of(environ={"KVGATE_DATA": "/data", "KVGATE_INSTALL": "1"}) == Settings()


def test_variables_of_a_kubernetes_service_called_kvgate_are_left_alone():
    links = {
        "KVGATE_SERVICE_HOST": "10.0.0.1",
        "KVGATE_SERVICE_PORT": "8000",
        "KVGATE_SERVICE_PORT_HTTP": "8000",
        "KVGATE_PORT": "tcp://10.0.0.1:8000",
        "KVGATE_PORT_8000_TCP": "tcp://10.0.0.1:8000",
        "KVGATE_PORT_8000_TCP_ADDR": "10.0.0.1",
    }
    assert settings_of(environ=links) == Settings()
    assert settings_of(environ={"KVGATE_PORT": "81"}).port == 81


def test_flags_cannot_be_abbreviated():
    assert mistakes_of("--worker-url", "a:1") == ["--worker-url: unknown flag (did you mean --worker-urls?)"]


def test_help_shows_every_flag_and_ends_with_success(capsys):
    with pytest.raises(SystemExit) as ended:
        settings_of("--help")
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert all(
        flag_of(name) in shown for option in OPTIONS if "flag" in option.sources for name in option.names
    )
    assert "[64MiB]" in shown


# Values


@pytest.mark.parametrize(
    ("text", "seconds"), [("30", 30), ("1.5", 1.5), ("500ms", 0.5), ("2m", 120), ("1h", 3600), ("30 s", 30)]
)
def test_durations(text, seconds):
    assert settings_of("--idle-timeout", text).idle_timeout == seconds


@pytest.mark.parametrize("text", ["0", "-1", "1d", "s", "", "nan", "inf", "1e999", "true"])
def test_wrong_durations(text):
    (mistake,) = mistakes_of(f"--idle-timeout={text}")
    assert mistake.startswith("--idle-timeout: must be a duration above 0")


@pytest.mark.parametrize(
    ("text", "size"),
    [("1000", 1000), ("64MiB", 64 << 20), ("64MB", 64_000_000), ("512KiB", 512 << 10), ("1.5gib", 3 << 29)],
)
def test_byte_sizes(text, size):
    assert settings_of("--max-body", text).max_body == size


@pytest.mark.parametrize("text", ["0", "-1", "64M", "64 MiBi", "many"])
def test_wrong_byte_sizes(text):
    assert mistakes_of(f"--max-body={text}")[0].startswith("--max-body: must be a size above 0")


def test_switches_need_no_word_and_take_one():
    assert settings_of("--early-headers").early_headers is True
    assert settings_of("--early-headers", "no").early_headers is False
    assert settings_of(environ={"KVGATE_EARLY_HEADERS": "1"}).early_headers is True
    assert with_yaml("early_headers: true").early_headers is True
    assert mistakes_of("--early-headers", "maybe") == ["--early-headers: must be true or false, not 'maybe'"]


def test_words_for_nothing():
    settings = with_yaml(
        "access_log: json\nkv_events: null\n", "--access-log", "none", "--max-connections", "none"
    )
    assert (settings.access_log, settings.kv_events, settings.max_connections) == (None, None, None)


def test_numbers_are_not_truth_values():
    assert mistakes_in_yaml("port: true") == [
        "k.yaml: port: must be a whole number from 0 to 65535, not True"
    ]


@pytest.mark.parametrize("spelling", ["round-robin", "ROUND_ROBIN", "roundrobin"])
def test_policy_names_are_taken_as_other_routers_spell_them(spelling):
    assert settings_of("--routing-logic", spelling).policy == "round_robin"


# The kv policy's parameters


def test_kv_parameters_are_kept_for_the_kv_policy_whatever_is_in_force():
    settings = settings_of("--policy", "random", "--kv-temperature", "0.5", "--kv-assume-kv-reuse", "no")
    assert settings.parameters_for("kv") == {"temperature": 0.5, "assume_kv_reuse": False}
    assert settings.parameters_for("random") == {}
    assert make_policy("kv", settings.parameters_for("kv")).parameters["temperature"] == 0.5


def test_a_file_may_give_a_policy_with_its_parameters():
    settings = with_yaml(
        "policy: {name: kvaware, parameters: {temperature: 0.5}}", "--kv-prefill-load-scale", "2"
    )
    assert settings.policy == "kv"
    assert settings.parameters_for("kv") == {"temperature": 0.5, "prefill_load_scale": 2.0}


def test_mistakes_in_a_policy_mapping():
    text = "policy: {name: kv, weight: 1, parameters: {temperatur: 1, host_cache_hit_weight: 2}}"
    assert mistakes_in_yaml(text) == [
        "k.yaml: policy.weight: unknown; allowed: name, parameters",
        "k.yaml: policy.parameters.temperatur: unknown (did you mean temperature?); allowed: "
        + ", ".join(parameters_of("kv")),
        "k.yaml: policy.parameters.host_cache_hit_weight: must be a number from 0 to 1, not 2",
    ]
    assert mistakes_in_yaml("policy: {name: best}")[0].startswith(
        "k.yaml: policy.name: unknown policy 'best'; known: random,"
    )
    assert mistakes_in_yaml("policy: {parameters: [1]}") == [
        "k.yaml: policy.parameters: must be a mapping of parameter names to values"
    ]


def test_a_policy_may_be_written_with_its_parameters():
    settings = settings_of("--policy", "kv-aware,temperature=0.5,track-active-blocks=no")
    assert settings.policy == "kv"
    assert settings.parameters_for("kv") == {"temperature": 0.5, "track_active_blocks": False}


def test_a_later_source_adds_to_the_parameters_of_an_earlier_one():
    settings = with_yaml("policy: kv,temperature=0.5", "--policy", "kv,prefill_load_scale=8")
    assert settings.parameters_for("kv") == {"temperature": 0.5, "prefill_load_scale": 8.0}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("kv,temperature=hot", "temperature must be a finite number >= 0, not 'hot'"),
        ("kv,temperature", "'temperature' in 'kv,temperature' is no key=value; write NAME,key=value,..."),
        ("random,temperature=1", "policy random has no parameter 'temperature'; it has: none"),
    ],
)
def test_mistakes_in_a_policy_with_parameters(text, what):
    assert mistakes_of("--policy", text) == [f"--policy: {what}"]


def test_kv_parameters_are_checked_against_their_range():
    assert mistakes_of("--kv-disk-cache-hit-weight", "1.5") == [
        "--kv-disk-cache-hit-weight: must be a number from 0 to 1, not '1.5'"
    ]


# Workers in a file


def test_workers_with_values_of_their_own():
    text = """
    workers:
      - http://a:8000
      - url: http://b:8000
        name: b
        kv_events: tcp://b:5557
        kv_replay: tcp://b:5558
        role: decode
        api_key: "@key"
    """
    settings = settings_of("--config", "k.yaml", files={"k.yaml": text, "key": "s3cret\n"})
    assert settings.workers == (
        WorkerConfig(url="http://a:8000"),
        WorkerConfig(
            url="http://b:8000",
            name="b",
            kv_events="tcp://b:5557",
            kv_replay="tcp://b:5558",
            role="decode",
            api_key="s3cret",
        ),
    )
    assert "s3cret" not in repr(settings)


def test_mistakes_in_workers():
    text = "workers: [{name: a}, {url: 'http://b', rol: both}, {url: 'http://c', role: cook}, 7]"
    assert mistakes_in_yaml(text) == [
        "k.yaml: workers[0]: must be a URL, or a mapping with a url",
        "k.yaml: workers[1].rol: unknown (did you mean role?); allowed: "
        "url, name, kv_events, kv_replay, role, bootstrap_port, kv_address, connector, api_key",
        "k.yaml: workers[2].role: must be one of both, prefill, decode, not 'cook'",
        "k.yaml: workers[3]: must be a URL, or a mapping with a url",
    ]


def test_workers_stand_only_in_a_file():
    assert mistakes_of("--workers", "http://a")[0].startswith("--workers: unknown flag")
    assert mistakes_of(environ={"KVGATE_WORKERS": "http://a"})[0].startswith("KVGATE_WORKERS: unknown")


# Keys


def test_api_keys_are_collected_and_read_from_files():
    settings = settings_of("--api-key", "one", "--api-key", "@keys", files={"keys": "two\n\n three \n"})
    assert settings.api_key == ("one", "two", "three")


def test_single_keys_may_come_from_a_file():
    settings = settings_of("--worker-api-key", "@w", "--admin-api-key", "a", files={"w": "worker\n"})
    assert (settings.worker_api_key, settings.admin_api_key) == ("worker", "a")


def test_keys_never_show():
    settings = settings_of("--api-key", "hush1", "--worker-api-key", "hush2", "--admin-api-key", "hush3")
    assert "hush" not in repr(settings)
    wrong = mistakes_of("--api-key", "hush with spaces", environ={"KVGATE_ADMIN_API_KEY": "hüsh"})
    assert len(wrong) == 2
    assert not any("hush" in mistake or "hüsh" in mistake for mistake in wrong)


def test_an_empty_key_is_a_mistake_and_not_an_open_door():
    assert mistakes_of(environ={"KVGATE_API_KEY": ""}) == [
        "KVGATE_API_KEY: must be a key of visible ASCII characters, or @FILE"
    ]
    assert mistakes_of("--api-key", "@empty", files={"empty": "\n"}) == ["--api-key: empty holds no keys"]
    assert mistakes_of("--admin-api-key", "@two", files={"two": "a\nb\n"}) == [
        "--admin-api-key: two holds 2 keys"
    ]


# Mistakes


def test_every_mistake_of_every_source_is_reported_at_once():
    argv = ["--prot", "1", "--log-level", "noise", "--max-body", "--config", "k.yaml"]
    environ = {"KVGATE_POLCY": "kv", "KVGATE_SEED": "x"}
    assert mistakes_of(*argv, environ=environ, files={"k.yaml": "porrt: 1\nhost: ''\n"}) == [
        "--prot: unknown flag (did you mean --port?)",
        "--max-body: needs a value",
        "KVGATE_POLCY: unknown (did you mean KVGATE_POLICY?)",
        "k.yaml: porrt: unknown (did you mean port?)",
        "k.yaml: host: must be a host name or an IP address, not ''",
        "KVGATE_SEED: must be a whole number, not 'x'",
        "--log-level: must be one of debug, info, warning, error, not 'noise'",
    ]


def test_a_wrong_value_is_a_mistake_even_where_it_is_overridden():
    assert mistakes_of("--port", "1", environ={"KVGATE_PORT": "x"}) == [
        "KVGATE_PORT: must be a whole number from 0 to 65535, not 'x'"
    ]


def test_stray_words_and_too_many_values():
    assert mistakes_of("http://a") == ["http://a: unexpected word: options begin with --"]
    assert mistakes_of("--port", "1", "2") == ["--port: takes one value, 2 given"]
    assert mistakes_in_yaml("port: [1]") == ["k.yaml: port: takes one value, not a list"]


def test_a_name_and_its_alias_in_one_source_contradict():
    environ = {"KVGATE_POLICY": "kv", "KVGATE_ROUTING_LOGIC": "random"}
    assert mistakes_of(environ=environ) == ["KVGATE_ROUTING_LOGIC: already given as KVGATE_POLICY"]


@pytest.mark.parametrize(
    ("path", "text", "part"),
    [
        ("k.yaml", "port: [", "while parsing"),
        ("k.yaml", "- a\n- b\n", "must be a mapping of option names"),
        ("k.yaml", "port: 1\nport: 2\n", "key 'port' given twice"),
        ("k.yaml", "[a]: 1\n", "unhashable"),
        ("k.toml", "port = \n", "at line 1"),
        ("k.json", "{}", "must end in .yaml, .yml or .toml"),
    ],
)
def test_files_that_cannot_be_read_as_configuration(path, text, part):
    (mistake,) = mistakes_of("--config", path, files={path: text})
    assert mistake.startswith(path)
    assert part in mistake


def test_files_that_cannot_be_opened():
    assert mistakes_of("--config", "k.yaml", "--api-key", "@keys") == [
        "--config: can't read k.yaml: No such file or directory",
        "--api-key: can't read keys: No such file or directory",
    ]


def test_a_file_that_is_no_text():
    def read(path):
        return b"\xff".decode("utf-8")

    with pytest.raises(ConfigErrors) as raised:
        load(["--config", "k.yaml"], {}, read)
    assert str(raised.value) == "--config: can't read k.yaml: not UTF-8 text"


# Rules between options


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "kvgate.example"])
def test_an_admin_port_beyond_loopback_needs_a_key(host):
    assert mistakes_of("--admin-host", host) == [
        f"--admin-host: {host} is not loopback: --admin-api-key must be set"
    ]
    assert settings_of("--admin-host", host, "--admin-api-key", "k").admin_host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_loopback_needs_none(host):
    assert settings_of("--admin-host", host).admin_host == host


def test_the_two_ports_must_differ():
    assert mistakes_of("--port", "9190") == ["--port: both ports are 9190"]
    assert settings_of("--port", "0", "--admin-port", "0").port == 0


def test_replay_without_events_makes_no_sense():
    assert mistakes_of("--kv-replay", "tcp://{host}:5558") == [
        "--kv-replay: needs kv_events: events are what is replayed"
    ]
    text = "workers: [{url: 'http://a', kv_replay: 'tcp://a:1'}]"
    assert mistakes_in_yaml(text) == [
        "k.yaml: workers[0].kv_replay: needs kv_events: events are what is replayed"
    ]


def test_workers_that_cannot_be_join_the_list():
    argv = ["--worker-urls", "http://a", "ftp://b", "http://a", "--kv-events", "tcp://{hots}:1"]
    assert mistakes_of("--port", "x", *argv) == [
        "--port: must be a whole number from 0 to 65535, not 'x'",
        "--kv-events: '{hots}': expected {host}, or a sum of port, index, rank and whole numbers",
        "--worker-urls: 'ftp://b': expected http://host:port, https://host:port or unix:/path/to.sock",
    ]
    text = "workers: [{url: 'http://a', kv_events: 'udp://a'}]"
    (mistake,) = mistakes_in_yaml(text)
    assert mistake.startswith("k.yaml: workers[0].kv_events: 'udp://a': expected tcp://")


# Around the process


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("k.yaml", "[" * 5000, "k.yaml: is nested too deeply"),
        ("k.yaml", "port: " + "[" * 5000 + "]" * 5000, "k.yaml: is nested too deeply"),
        ("k.toml", "port = " + "[" * 5000 + "]" * 5000, "k.toml: is nested too deeply"),
        ("k.yaml", "port: 2026-99-99", "k.yaml: month must be in 1..12"),
        ("k.yaml", "port: " + "9" * 5000, "k.yaml: Exceeds the limit"),
    ],
)
def test_a_file_that_no_parser_gets_through_is_one_mistake(name, text, words):
    (mistake,) = mistakes_of("--config", name, files={name: text})
    assert mistake.startswith(words)


def test_load_or_exit_shows_all_mistakes_and_ends_with_2(capsys, monkeypatch):
    monkeypatch.setenv("KVGATE_PORTS", "1")
    with pytest.raises(SystemExit) as ended:
        load_or_exit(["--port", "x"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines() == [
        "kvgate serve: 2 mistakes in the configuration, nothing was started:",
        "  KVGATE_PORTS: unknown (did you mean KVGATE_PORT?)",
        "  --port: must be a whole number from 0 to 65535, not 'x'",
    ]


def test_load_or_exit_reads_real_files(tmp_path):
    path = tmp_path / "k.yaml"
    path.write_text("seed: 7\n", encoding="utf-8")
    assert load_or_exit(["--config", str(path)]).seed == 7


# Documentation and examples


def documented_rows():
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    lines = text[text.index("## Options") : text.index("## Templates")].splitlines()
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| ")
    ]
    return [row for row in rows if row[0] not in ("flag", "---")]


def test_the_documentation_has_a_row_for_every_option():
    def code(*words):
        return ", ".join(f"`{word}`" for word in words if word)

    assert documented_rows() == [
        [
            code(*map(flag_of, option.names)) if "flag" in option.sources else "",
            code(variable_of(option.name)) if "environment" in option.sources else "",
            code(option.name) if "file" in option.sources else "",
            code(default_words(option)),
            option.value.allowed,
            option.help,
        ]
        for option in OPTIONS
    ]


def test_the_documentation_has_a_row_for_every_key_of_a_worker():
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    for name, value in WORKER_KEYS.items():
        assert f"| `{name}` | {value.allowed} |" in text


def test_the_examples_load_and_say_the_same():
    read = {
        path: (ROOT / "examples" / path).read_text(encoding="utf-8")
        for path in ("kvgate.yaml", "kvgate.toml")
    }
    from_yaml, from_toml = (settings_of("--config", path, files=read) for path in read)
    assert replace(from_yaml, config=None) == replace(from_toml, config=None)
    assert len(from_yaml.worker_urls) == 2
    assert from_yaml.workers[0].name == "big-one"
    assert from_yaml.request_timeout == 1800
