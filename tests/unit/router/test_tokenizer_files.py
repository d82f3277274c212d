"""Tokenizers are found where they lie, and where there is none the message says what to do."""

import msgspec
import pytest

from router.tokenizer_files import NoTokenizer, find_tokenizer, need_packages, read_template, split_named


def write(folder, config=None, **files):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text("{}")
    if config is not None:
        (folder / "tokenizer_config.json").write_bytes(msgspec.json.encode(config))
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content)
    return folder


@pytest.mark.parametrize("name", ["", "tokenizer.json"])
def test_a_directory_or_its_file(name, tmp_path):
    folder = write(tmp_path / "m", {"bos_token": "<s>", "chat_template": "T"})
    files = find_tokenizer(str(folder / name))
    assert files.tokenizer == folder / "tokenizer.json"
    assert files.config["bos_token"] == "<s>"
    assert files.templates == {"default": "T"}


@pytest.mark.parametrize(
    ("config", "files", "templates"),
    [
        (None, {}, {}),
        ({}, {}, {}),
        ({"chat_template": "T"}, {"chat_template__jinja": "own"}, {"default": "own"}),
        ({}, {"chat_template__json": '{"chat_template": "P"}'}, {"default": "P"}),
        ({"chat_template": 5}, {}, {}),
        (
            {
                "chat_template": [
                    {"name": "default", "template": "D"},
                    {"name": "tool_use", "template": "U"},
                    5,
                ]
            },
            {},
            {"default": "D", "tool_use": "U"},
        ),
    ],
)
def test_where_templates_are(config, files, templates, tmp_path):
    assert find_tokenizer(str(write(tmp_path, config, **files))).templates == templates


def test_the_map_of_special_tokens_fills_in(tmp_path):
    folder = write(
        tmp_path, {"bos_token": "B"}, special_tokens_map__json='{"bos_token": "x", "eos_token": "E"}'
    )
    assert find_tokenizer(str(folder)).config == {"bos_token": "B", "eos_token": "E"}


@pytest.mark.parametrize("variable", ["HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"])
def test_a_name_in_the_hub_cache(variable, tmp_path):
    below = {"HF_HUB_CACHE": "", "HF_HOME": "hub", "XDG_CACHE_HOME": "huggingface/hub"}[variable]
    model = tmp_path / below / "models--org--name"
    write(model / "snapshots" / "old")
    wanted = write(model / "snapshots" / "new")
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("new\n")
    files = find_tokenizer("org/name", {variable: str(tmp_path)})
    assert files.tokenizer == wanted / "tokenizer.json"


def test_a_single_snapshot_needs_no_reference(tmp_path):
    wanted = write(tmp_path / "models--gpt2" / "snapshots" / "abc")
    assert find_tokenizer("gpt2", {"HF_HUB_CACHE": str(tmp_path)}).tokenizer == wanted / "tokenizer.json"


def test_several_snapshots_without_a_reference(tmp_path):
    for revision in "ab":
        write(tmp_path / "models--gpt2" / "snapshots" / revision)
    with pytest.raises(NoTokenizer, match="no refs/main and 2 snapshots: name a directory"):
        find_tokenizer("gpt2", {"HF_HUB_CACHE": str(tmp_path)})


def test_what_is_not_there(tmp_path):
    environ = {"HF_HUB_CACHE": str(tmp_path)}
    with pytest.raises(
        NoTokenizer, match=r"org/name: no such file.* not in the hub cache .*nothing is downloaded"
    ):
        find_tokenizer("org/name", environ)
    with pytest.raises(NoTokenizer, match=r"/no/such/place: no such file or directory$"):
        find_tokenizer("/no/such/place", environ)
    with pytest.raises(NoTokenizer, match=r"holds no tokenizer\.json"):
        find_tokenizer(str(tmp_path), environ)
    with pytest.raises(NoTokenizer, match="can't read"):
        read_template(str(tmp_path / "none"))


@pytest.mark.parametrize("content", ["{", "[]", "\ud800".encode("utf-8", "surrogatepass").decode("latin-1")])
def test_a_configuration_that_is_none(content, tmp_path):
    folder = write(tmp_path, tokenizer_config__json=content)
    with pytest.raises(NoTokenizer, match="is no JSON object"):
        find_tokenizer(str(folder))


def test_a_template_that_is_no_text(tmp_path):
    (tmp_path / "t").write_bytes(b"\xff")
    with pytest.raises(NoTokenizer, match="not UTF-8 text"):
        read_template(str(tmp_path / "t"))


def test_one_model_or_all():
    assert split_named("/a/b") == ("", "/a/b")
    assert split_named("m=/a/b=c") == ("m", "/a/b=c")


def test_the_extra_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setattr("router.tokenizer_files.find_spec", lambda name: None)
    with pytest.raises(
        NoTokenizer, match=r"tokenizers and jinja2, not installed: pip install 'kvgate\[tokenizers\]'"
    ):
        need_packages()


@pytest.mark.parametrize("place", ["~0", "~nobody/x", "a\0b", "x" * 5000, "-"])
@pytest.mark.parametrize("find", [find_tokenizer, read_template])
def test_a_place_that_can_not_be(find, place):
    with pytest.raises(NoTokenizer):
        find(place)
