"""Which models ``serve`` has, with which options and how much memory, up to where it would listen."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead.cli.main import run
from ipex_lookahead.cli.model_memory import PROCESS_BYTES, weight_bytes
from ipex_lookahead.files.paths import PRESETS
from ipex_lookahead.runtime.loading import load_text_model
from ipex_lookahead.serving import run as serving
from ipex_lookahead.serving.router.app import RouterServer
from ipex_lookahead.serving.router.entries import ModelEntry
from ipex_lookahead.serving.server import Server
from tests.support.chat_tokenizer import write_chat_llama


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("several models")
    for name in ("alpha", "beta"):
        write_chat_llama(made / name, context=512)
    (made / "notes").mkdir()
    (made / "cut.gguf").write_bytes(b"GGUF")
    (made / "alpha-mmproj-F16.gguf").write_bytes(b"GGUF")
    return made


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Server]:
    """``served("-m", ...)`` is the server of such a command line."""
    found: list[Server] = []
    monkeypatch.setattr(serving, "serve", lambda server, bound, load, **more: found.append(server))

    def start(*options: Any) -> Server:
        assert run(["serve", "--port", "0", *map(str, options)]) == 0
        return found[-1]

    return start


def models(server: Server) -> dict[str, ModelEntry]:
    assert isinstance(server, RouterServer)
    return {entry.name: entry for entry in server.table.entries()}


def test_one_model_is_served_by_one_process(folder, served):
    assert type(served("-m", folder / "alpha")) is Server


def test_models_of_the_command_line_have_its_options(folder, served):
    options = ("--slots", 2, "--low-bit", "SYM_INT4", "--no-adaptive", "--cache-memory", "1M")
    server = served("-m", folder / "alpha", "-m", folder / "beta", *options, "--idle-unload", 60, "--quiet")
    found = models(server)
    assert list(found) == list(server.settings.names) == ["alpha", "beta"]
    line = " ".join(found["beta"].options)
    for option in ("--slots 2", "--low-bit sym_int4", "--no-adaptive", "--cache-memory 1048576"):
        assert option in line
    assert line.endswith(f"--model {folder / 'beta'} --served-model-name beta")
    for option in ("--idle-unload", "--quiet", "--port"):
        assert option not in line
    assert found["beta"].lifetime == 60
    weights = weight_bytes(folder / "beta", "sym_int4")
    assert found["beta"].memory_bytes == weights + (1 << 20) + PROCESS_BYTES


def test_the_environment_names_a_model_with_spaces_in_its_path(folder, served, monkeypatch):
    monkeypatch.setenv("IPEX_LOOKAHEAD_SERVE_MODEL", str(folder / "alpha"))
    monkeypatch.setenv("IPEX_LOOKAHEAD_SERVE_SLOTS", "3")
    (entry,) = models(served("--idle-unload", 1)).values()
    assert entry.source == str(folder / "alpha")
    assert "--slots 3" in " ".join(entry.options)


def test_a_folder_of_models(folder, served, caplog):
    found = models(served("--models-dir", folder))
    assert list(found) == ["alpha", "beta"]
    assert "cut.gguf is not served: " in caplog.text
    assert found["alpha"].lifetime == math.inf


def test_a_file_of_models_with_options_each(folder, served, tmp_path):
    file = tmp_path / "models.yaml"
    file.write_text(
        f"""
one: {{model: "{folder / "alpha"}", low_bit: sym_int4, slots: 5, served-model-name: [uno, eins], cpu-moe: false}}
two: {{model: "{folder / "beta"}"}}
""",
        encoding="utf-8",
    )
    found = models(served("--models", file, "--slots", 2, "-m", "default"))
    assert list(found) == ["default", "one", "two"]
    assert found["default"].memory_bytes is None
    assert found["one"].aliases == ["uno", "eins"]
    assert found["one"].places.of_key == 5 + 64
    assert found["two"].places.of_key == 2 + 64
    line = " ".join(found["one"].options)
    assert line.startswith("--slots 2 --low-bit sym_int4 --slots 5 --model ")
    assert line.endswith("--served-model-name one --served-model-name uno --served-model-name eins")


@pytest.mark.parametrize("file", sorted((PRESETS / "models").glob("*.yaml")), ids=lambda file: file.stem)
def test_a_preset_of_models(file, served):
    assert models(served("--models", file.stem)).keys() >= {"coder", "small"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("one: {model: default, slot: 4}", "'one' has an unknown option 'slot'\nhint: did you mean slots?"),
        ("one: {model: default, port: 4}", "'one' has an unknown option 'port'"),
        ("one: {model: default, api-key-file: x}", "'one' has an unknown option 'api-key-file'"),
        ("one: {model: default, slots: many}", "'one': Invalid value for '--slots'"),
        ("one: {model: default, slots: 0}", "'one': Invalid value for '--slots'"),
        ("one: {model: default, slots: {a: 1}}", "'one': slots is {'a': 1}; it must be a value or a list of values"),
        ("one: {model: default, cpu-moe: 4}", "'one': cpu-moe is 4; it must be true or false"),
        ("one: {model: default, low-bit: int3}", "unknown format 'int3'"),
        ("one: {slots: 4}", "'one' must have one model"),
        ("one: {model: [default, default]}", "'one' must have one model"),
        ("one: default", "'one' must be a name with a mapping of options"),
        ("4: {model: default}", "4 must be a name with a mapping of options"),
        ("one: {model: default}\none: {model: default}", "one"),
        ("[]", "must be a mapping of model names"),
        ("one: {model: ./nowhere.gguf}", "nowhere.gguf"),
        ("{", "models.yaml"),
        ("one: {model: default}\ntwo: {model: default, served-model-name: one}", "there are two models 'one'"),
    ],
)
def test_a_file_that_is_refused(text, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("models.yaml").write_text(text, encoding="utf-8")
    assert run(["serve", "--port", "0", "--models", "models.yaml"]) in (1, 2)
    printed = capsys.readouterr().err
    assert said in printed
    assert "Traceback" not in printed


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--models-dir", "nowhere"], "--models-dir: nowhere: no such file or directory"),
        (["--models-dir", "empty"], "--models-dir: empty has no models"),
        (["-m", "default", "-m", "default"], "there are two models 'default'"),
        (["-m", "default", "--idle-unload", "1", "--served-model-name", "x"], "--served-model-name is for one model"),
        (["--models-memory", "much"], "must be a size such as 512M or 2G"),
        (["--worker"], "--worker is for processes that a server starts"),
    ],
)
def test_options_that_are_refused(options, said, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    assert run(["serve", "--port", "0", *options]) in (1, 2)
    assert said in capfd.readouterr().err


def test_a_model_larger_than_the_budget(folder, capsys):
    assert run(["serve", "--port", "0", "-m", str(folder / "alpha"), "--models-memory", "1G"]) == 1
    assert (
        "the model 'alpha' needs 1.3 GiB of memory, and the budget of all models is 1.0 GiB" in capsys.readouterr().err
    )


@pytest.mark.parametrize("low_bit", [None, "sym_int4", "gguf_q4k_m"])
def test_the_computed_memory_of_weights(folder, low_bit):
    loaded = load_text_model(str(folder / "alpha"), low_bit=low_bit, threads=1, progress=False)
    engine = loaded.engine.describe()["weight_bytes"]
    assert weight_bytes(folder / "alpha", low_bit) == pytest.approx(engine, rel=0.03)
