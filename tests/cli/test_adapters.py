"""``--lora``: names, what is applied by ``generate`` and ``chat``, and which models and adapters are served."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead.checkpoints import open_checkpoint
from ipex_lookahead.cli.adapters import named_adapters
from ipex_lookahead.cli.main import run
from ipex_lookahead.serving import run as serving
from ipex_lookahead.serving.router.app import RouterServer
from tests.support.adapter_files import (
    llama_changes,
    llama_gguf_changes,
    random_changes,
    write_gguf_adapter,
    write_peft,
)
from tests.support.chat_tokenizer import write_chat_llama


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and two adapters: a PEFT folder and a GGUF file."""
    made = tmp_path_factory.mktemp("adapted")
    model = write_chat_llama(made / "model", context=512)
    opened = open_checkpoint(model)
    shapes = {tensor.name: tensor.shape for tensor in opened.spec.tensors()}
    opened.close()
    write_peft(made / "one", llama_changes(shapes, seed=1))
    write_gguf_adapter(made / "two.gguf", llama_gguf_changes(llama_changes(shapes, seed=2), heads=4, kv_heads=2))
    return made


def generated(folder: Path, capsys: Any, *options: Any) -> Any:
    line = ["generate", "-m", folder / "model", "-n", 8, "--json", *options, "hello"]
    assert run([str(one) for one in line]) == 0
    return json.loads(capsys.readouterr().out)


def test_generate_applies_the_adapter(folder: Path, capsys: Any) -> None:
    plain, one = generated(folder, capsys), generated(folder, capsys, "--lora", folder / "one")
    other = generated(folder, capsys, "--lora", f"x={folder / 'two.gguf'}")
    assert len({json.dumps(found["token_ids"]) for found in (plain, one, other)}) == 3
    assert ("adapter" in plain, one["adapter"], other["adapter"]) == (False, "one", "x")


def test_chat_begins_with_the_first_and_changes(
    folder: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    files = [tmp_path / f"{number}.json" for number in range(4)]
    lines = []
    for file, commands in zip(
        files, ([], ["/adapter none"], ["/adapter two 0.5", "/adapter"], ["/adapter one"]), strict=True
    ):
        lines += [*commands, "hi", f"/save {file}", "/reset"]
    lines += ["/adapter three", "/adapter two x", "/adapter", "/bye"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(lines).encode())))
    options = ["--lora", folder / "one", "--lora", folder / "two.gguf", "-n", 6, "--no-history"]
    assert run([str(one) for one in ["chat", "-m", folder / "model", *options]]) == 0
    err = capsys.readouterr().err
    first, without, half, again = (json.loads(file.read_text())["turns"][-1] for file in files)
    assert first == again
    assert len({json.dumps(one) for one in (first, without, half)}) == 3
    assert "* two (scale 0.5)" in err
    assert "adapter: none" in err
    assert "there is no adapter 'three'; loaded adapters: one, two" in err
    assert "scale must be a number from -100 to 100, got 'x'" in err
    assert err.rstrip().endswith("* one\n  two")


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (["a/b"], {"b": "a/b"}),
        (["x=a/b.gguf", "owner/c.gguf"], {"x": "a/b.gguf", "c": "owner/c.gguf"}),
        (["x=a=b"], {"x": "a=b"}),
    ],
)
def test_names(given: list[str], names: dict[str, str]) -> None:
    assert named_adapters(given) == names


def test_a_path_with_an_equals_sign_is_a_path_if_it_exists(tmp_path: Path) -> None:
    (tmp_path / "r=8").mkdir()
    assert named_adapters([str(tmp_path / "r=8")]) == {"r=8": str(tmp_path / "r=8")}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--lora", "x="], "give NAME=PATH, or PATH alone"),
        (["--lora", "=x"], "give NAME=PATH, or PATH alone"),
        (["--lora", "x=ONE", "--lora", "x=TWO"], "there are two adapters 'x'"),
        (["--lora", "MODEL"], "is not an adapter"),
        (["--lora", "./absent"], "absent: no such adapter"),
        (["--lora", "../../absent"], "../../absent: no such adapter"),
        (["--lora", "qwen3"], "qwen3: no such adapter"),
        (["--lora", "none=ONE"], "'none' is the model alone"),
        (["--lora", "OTHER"], "in MODEL: the adapter was trained for someone/base"),
        (["--lora", "ONE", "--lora", "TWO"], "generate applies one adapter"),
    ],
)
def test_what_is_refused(options: list[str], says: str, folder: Path, capsys: Any) -> None:
    places = {"ONE": folder / "one", "TWO": folder / "two.gguf", "MODEL": folder / "model", "OTHER": folder / "other"}
    write_peft(folder / "other", random_changes({"model.layers.0.mlp.up_proj": (8, 8)}))
    line = [one if one.startswith("-") else _replaced(one, places) for one in options]
    assert run(["generate", "-m", str(folder / "model"), "-n", "2", *line, "hello"]) in (1, 2)
    assert _replaced(says, places) in capsys.readouterr().err


def _replaced(text: str, places: dict[str, Path]) -> str:
    for word, path in places.items():
        text = text.replace(word, str(path))
    return text


# ---- serve -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """``served("-m", ...)`` is the exit status of such a command line, and its server with the models loaded."""
    found: list[Any] = [None]

    def serve(server: Any, bound: Any, load: Callable[[], None], **more: Any) -> None:
        load()
        found.append(server)

    monkeypatch.setattr(serving, "serve", serve)

    def start(*options: Any) -> tuple[int, Any]:
        return run(["serve", "--port", "0", *map(str, options)]), found[-1]

    return start


def test_one_model_with_its_adapters(folder: Path, served: Callable[..., Any], capsys: Any) -> None:
    status, server = served("-m", folder / "model", "--lora", folder / "one", "--lora", f"b={folder}/two.gguf")
    assert status == 0
    try:
        assert server.names == ["model", "one", "b"]
        assert "adapters: one, b" in capsys.readouterr().err
    finally:
        server.close(0.0)


def test_adapters_of_several_models(folder: Path, served: Callable[..., Any], tmp_path: Path) -> None:
    file, model = tmp_path / "models.yaml", json.dumps(str(folder / "model"))
    file.write_text(f"a: {{model: {model}, lora: ['x={folder}/one', '{folder}/two.gguf']}}\nb: {{model: {model}}}\n")
    status, server = served("--models", file)
    assert status == 0
    assert isinstance(server, RouterServer)
    a, b = server.table.entries()
    assert (a.adapters, b.adapters) == (("x", "two"), ())
    assert " ".join(a.options).count("--lora") == 2
    assert server.table.find("two") is a
    opened = open_checkpoint(folder / "model")
    changes = llama_changes({tensor.name: tensor.shape for tensor in opened.spec.tensors()})
    opened.close()
    assert a.memory_bytes - b.memory_bytes == 2 * sum(one.nbytes + other.nbytes for one, other in changes.values())
    assert server.table.find("x:latest") is a


@pytest.mark.parametrize(
    ("lora", "says"), [("a=ONE", "lora: 'a' is the model's name"), ("absent", "absent: no such adapter")]
)
def test_adapters_of_several_models_are_refused(
    lora: str, says: str, folder: Path, served: Callable[..., Any], tmp_path: Path, capsys: Any
) -> None:
    file, model = tmp_path / "models.yaml", json.dumps(str(folder / "model"))
    given = _replaced(lora, {"ONE": folder / "one"})
    file.write_text(f"a: {{model: {model}, lora: ['{given}']}}\nb: {{model: {model}}}\n")
    assert served("--models", file)[0] in (1, 2)
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["-m", "MODEL", "--lora", "model=ONE"], "'model' is the model's name"),
        (["-m", "MODEL", "-m", "default", "--lora", "ONE"], "--lora is for one model"),
        (["-m", "ONE"], "is a LoRA adapter, not a model; it changes someone/base"),
        (["-m", "MODEL", "--lora", "MODEL"], "is not an adapter"),
    ],
)
def test_what_serve_refuses(
    options: list[str], says: str, folder: Path, served: Callable[..., Any], capsys: Any
) -> None:
    places = {"ONE": folder / "one", "MODEL": folder / "model"}
    status, _ = served(*(_replaced(one, places) for one in options))
    assert status in (1, 2)
    assert says in capsys.readouterr().err


def test_adapters_in_a_folder_of_models_are_not_models(folder: Path, served: Callable[..., Any], caplog: Any) -> None:
    status, server = served("--models-dir", folder)
    assert status == 0
    assert [entry.name for entry in server.table.entries()] == ["model"]
    for name in ("one", "two.gguf"):
        assert f"{folder / name} is an adapter and is not served as a model" in caplog.text
