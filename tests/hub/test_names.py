"""What people write for a model, and where models are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipex_lookahead import hub
from ipex_lookahead.errors import InputError
from ipex_lookahead.hub.names import HubName, parse_name

HOST = "https://huggingface.co"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"IPEX_LOOKAHEAD_CACHE": "/a/b", "XDG_CACHE_HOME": "/x"}, "/a/b"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/ipex-lookahead"),
        ({"HOME": "/home/someone"}, "/home/someone/.cache/ipex-lookahead"),
        (
            {"HOME": "/home/someone", "XDG_CACHE_HOME": "", "IPEX_LOOKAHEAD_CACHE": ""},
            "/home/someone/.cache/ipex-lookahead",
        ),
    ],
)
def test_cache_folder(variables, expected, monkeypatch):
    for name in ("IPEX_LOOKAHEAD_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert hub.cache_folder() == Path(expected)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("owner/model-7b", HubName("owner/model-7b")),
        ("owner/model@v1.0", HubName("owner/model", "v1.0")),
        ("owner/model:a.Q4_0.gguf", HubName("owner/model", file="a.Q4_0.gguf")),
        ("owner/model:sub/a.gguf", HubName("owner/model", file="sub/a.gguf")),
        ("owner/model@v1:Q8_0", HubName("owner/model", "v1", "Q8_0")),
        ("hf.co/owner/model", HubName("owner/model")),
        ("hf.co/owner/model:Q8_0", HubName("owner/model", file="Q8_0")),
        ("huggingface.co/owner/model/", HubName("owner/model")),
        ("hf://owner/model", HubName("owner/model")),
        (f"{HOST}/owner/model", HubName("owner/model")),
        (f"{HOST}/owner/model#usage", HubName("owner/model")),
        ("http://www.huggingface.co/owner/model/tree/main", HubName("owner/model")),
        (f"{HOST}/owner/model/tree/v2", HubName("owner/model", "v2")),
        (f"{HOST}/owner/model/tree/refs%2Fpr%2F1", HubName("owner/model", "refs/pr/1")),
        (f"{HOST}/owner/model/tree/main/onnx/small", HubName("owner/model", subfolder="onnx/small")),
        (f"{HOST}/owner/model/blob/main/a.Q4_0.gguf", HubName("owner/model", file="a.Q4_0.gguf")),
        (f"{HOST}/owner/model/resolve/main/a%20b.gguf?download=true", HubName("owner/model", file="a b.gguf")),
        (f"{HOST}/owner/model/blob/main/config.json", HubName("owner/model")),
        (f"{HOST}/owner/model/raw/abc/sub/model.safetensors", HubName("owner/model", "abc", subfolder="sub")),
        (f"{HOST}/owner/model?show_file_info=a.Q8_0.gguf", HubName("owner/model", file="a.Q8_0.gguf")),
    ],
)
def test_names_of_the_hub(name, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert parse_name(name) == expected


@pytest.mark.parametrize(
    "made", [HubName("o/m"), HubName("o/m", "v1"), HubName("o/m", file="s/a.gguf"), HubName("o/m", "v1", "Q8_0"),
             HubName("o/m", subfolder="s/t")],
)  # fmt: skip
def test_a_name_is_written_as_it_is_read(made):
    assert parse_name(str(made)) == made


def test_what_is_here_comes_before_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert hub.resolve_model(str(tmp_path)) == tmp_path
    assert parse_name("default") is None
    (tmp_path / "owner" / "model-7b" / "sub").mkdir(parents=True)
    assert hub.resolve_model("owner/model-7b") == Path("owner/model-7b")
    assert hub.resolve_model("owner/model-7b", options=hub.HubOptions(subfolder="sub")) == Path("owner/model-7b/sub")


@pytest.mark.parametrize(
    "name", ["", "nonsense", "a\0b", "a" * 5000, "./a/b", "/a/b", "~/a", "a/b/c", "../a", "a/b.gguf", "a b/c", "x/../y",
             "~", "a/b:", "a/b@:c", ".a/b:c.gguf"],
)  # fmt: skip
def test_what_is_neither_path_nor_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    with pytest.raises(InputError, match="no model named") as caught:
        parse_name(name)
    assert "default" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("https://example.com/owner/model", "only huggingface.co model pages are supported, not example.com"),
        ("ftp://huggingface.co/owner/model", "not 'ftp://huggingface.co"),
        (f"{HOST}/datasets/owner/data", "a datasets page"),
        (f"{HOST}/owner", "not a model page"),
        (f"{HOST}/owner/model/discussions/1", "not a model page"),
        (f"{HOST}/owner/model/blob/main/../../x.gguf", "is outside"),
        ("owner/model:../x.gguf", "is outside"),
        ("http://[", "not a valid URL"),
    ],
)
def test_addresses_that_are_no_models(name, says):
    with pytest.raises(InputError, match=says):
        parse_name(name)


def test_a_file_written_as_a_path_is_told_how_to_write_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        parse_name("owner/model/a.Q4_0.gguf")
    assert "owner/model:a.Q4_0.gguf" in caught.value.hint


def test_options_that_do_not_go_with_a_local_model(tmp_path):
    (tmp_path / "inner").mkdir()
    assert hub.resolve_model(str(tmp_path), options=hub.HubOptions(revision="main")) == tmp_path
    with pytest.raises(InputError, match="no folder 'other'"):
        hub.resolve_model(str(tmp_path), options=hub.HubOptions(subfolder="other"))
    with pytest.raises(InputError, match=r"revision='v2'.*is a local path"):
        hub.resolve_model(str(tmp_path), options=hub.HubOptions(revision="v2"))
    with pytest.raises(InputError, match=r"subfolder='x'.*'default'"):
        hub.resolve_model("default", options=hub.HubOptions(subfolder="x"))
    for outside in ("..", "a/../../b", "/etc", "~"):
        with pytest.raises(InputError, match="inside the model's folder"):
            hub.HubOptions(subfolder=outside)
