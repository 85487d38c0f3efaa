"""``pull``, ``list`` and ``rm``, in processes whose hub is on this machine."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import pytest

from ipex_lookahead.cli.main import run
from ipex_lookahead.errors import InputError
from ipex_lookahead.hub.recommended import recommended_models
from tests.support.adapter_files import llama_changes, write_peft
from tests.support.chat_tokenizer import write_chat_llama
from tests.support.commands import in_one_process
from tests.support.fake_hub import COMMIT, fake_hub
from tests.support.gguf_bytes import build, llama_parts
from tests.support.tiny import TinyLlama, write_tiny_gguf

LETTERS = {
    "model": "gpt2",
    "pre": "gpt-2",
    "tokens": ["ab", *(chr(97 + i) for i in range(26)), *(chr(0x100 + i) for i in range(69))],
    "merges": ["a b"],
}
"""A vocabulary of letters, as a GGUF file has it."""


@pytest.fixture(scope="module")
def repositories(tmp_path_factory):
    made = write_chat_llama(tmp_path_factory.mktemp("tiny") / "folder")
    folder = {path.name: path.read_bytes() for path in made.iterdir()}
    ggufs = {
        f"tiny.{kind}.gguf": write_tiny_gguf(made.parent / f"{kind}.gguf", quant=kind).read_bytes()
        for kind in ("Q4_0", "Q8_0")
    }
    entries, tensors = llama_parts()
    lies = bytes(build([(k, t, "falcon" if v == "llama" and "arch" in k else v) for k, t, v in entries], tensors).data)
    changes = llama_changes(TinyLlama().shapes())
    written = write_peft(made.parent / "adapter", changes, base_model_name_or_path="owner/folder")
    adapter = {path.name: path.read_bytes() for path in written.iterdir()}
    return {
        "owner/folder": {**folder, "README.md": b"---\nlicense: mit\n---\n", "pytorch_model.bin": b"pickle"},
        "owner/ggufs": ggufs,
        "owner/falcon": {"model.gguf": lies},
        "owner/adapter": adapter | {"README.md": b"a card", "training_args.bin": b"pickle"},
        "owner/pickled": {"config.json": b"{}", "pytorch_model.bin": b"pickle"},
    }


@pytest.fixture
def hub(repositories):
    with fake_hub(dict(repositories)) as made:
        yield made


@pytest.fixture
def commands(hub, tmp_path):
    """``commands(["pull", ...], ...)`` runs commands in a process whose hub is ours."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    environment |= {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "hf"), "COLUMNS": "150"}
    environment |= {"IPEX_LOOKAHEAD_CACHE": str(tmp_path / "cache"), "HF_HUB_DISABLE_TELEMETRY": "1"}

    def call(*given):
        found = in_one_process(given, environment)
        assert not any("Traceback" in done.stderr for done in found), found
        return found

    return call


@pytest.mark.programs
def test_a_folder_is_pulled_listed_run_and_removed(commands, hub, tmp_path):
    url = "https://huggingface.co/owner/folder/tree/main"
    pulled, as_json, listed = commands(["pull", url], ["list", "--json"], ["list"])
    assert pulled.returncode == 0, pulled.stderr
    assert "looking for owner/folder on the hub" in pulled.stderr
    assert "owner/folder" in pulled.stdout.splitlines()[0]
    assert Path(pulled.stdout.splitlines()[1]).is_dir()
    assert "pytorch_model.bin" not in hub.fetched()

    (found,) = json.loads(as_json.stdout)["models"]
    assert (found["name"], found["kind"], found["format"]) == ("owner/folder", "safetensors", "fp32")
    assert found["bytes"] == sum(path.stat().st_size for path in Path(found["path"]).iterdir())
    assert "owner/folder" in listed.stdout
    assert "just now" in listed.stdout

    hub.refused["owner/folder"] = (503, "")  # the hub is down: what is here serves
    other = tmp_path / "hf" / "hub" / "models--owner--other"
    other.mkdir()
    remove = ["rm", "--yes", "owner/folder"]
    info, asked, removed, again = commands(["info", found["name"], "--json"], ["rm", "owner/folder"], remove, remove)
    assert info.returncode == 0, info.stderr
    assert json.loads(info.stdout)["license"] == "mit"
    assert (asked.returncode, "hint: ipex-lookahead rm --yes owner/folder" in asked.stderr) == (2, True)
    assert removed.returncode == 0, removed.stderr
    assert removed.stdout.startswith("removed owner/folder: ")
    assert [path.name for path in (tmp_path / "hf" / "hub").glob("models--*")] == [other.name]
    assert again.returncode == 1


@pytest.mark.programs
def test_one_file_of_several(commands, repositories, tmp_path):
    first, second, listed, removed = commands(
        ["pull", "owner/ggufs"], ["pull", "owner/ggufs:Q8_0"], ["list", "--json"], ["rm", "-y", "owner/ggufs:Q8_0"]
    )
    assert first.returncode == 0, first.stderr
    assert "owner/ggufs has 2 GGUF files; using tiny.Q4_0.gguf" in first.stderr
    assert second.returncode == 0
    names = {found["name"]: found["format"] for found in json.loads(listed.stdout)["models"]}
    assert names == {"owner/ggufs:tiny.Q4_0.gguf": "sym_int4", "owner/ggufs:tiny.Q8_0.gguf": "sym_int8"}
    size = len(repositories["owner/ggufs"]["tiny.Q8_0.gguf"])
    assert f"{size:,} bytes" in removed.stdout
    kept = tmp_path / "hf" / "hub" / "models--owner--ggufs"
    sizes = [blob.stat().st_size for blob in (kept / "blobs").iterdir()]
    assert sizes == [len(repositories["owner/ggufs"]["tiny.Q4_0.gguf"])]
    (last,) = commands(["rm", "-y", "owner/ggufs:tiny.Q4_0.gguf"])
    assert last.returncode == 0
    assert not kept.exists(), "nothing is left to keep"


@pytest.mark.programs
def test_a_short_name_is_pulled_run_and_removed(commands, hub, tmp_path):
    short, repo = "smollm2-360m", "HuggingFaceTB/SmolLM2-360M-Instruct-GGUF"
    words = {f"tokenizer.ggml.{key}": value for key, value in LETTERS.items()}
    made = write_tiny_gguf(tmp_path / "made.gguf", quant="Q8_0", metadata=words)
    hub.repositories[repo] = {"smollm2-360m-instruct-q8_0.gguf": made.read_bytes()}
    (answered,) = commands(["run", short, "ab", "-n", "3"])
    assert answered.returncode == 0, answered.stderr
    assert f"looking for {repo} on the hub" in answered.stderr
    assert "3 tokens" in answered.stderr
    hub.refused[repo] = (503, "")  # it is kept: the hub is not needed any more
    assert made.stat().st_size != recommended_models()[short].download, "the list's size is not that of the file"
    generate, info = ["generate", "-m", "SmolLM2:360m", "-n", "2", "ab"], ["info", short, "--json"]
    removing = ["rm", "--yes", "smollm2"]
    pulled, generated, told, removed, gone = commands(["pull", short], generate, info, removing, ["run", short, "ab"])
    assert "SmolLM2:360m: using smollm2-360m (0.4 GB, license Apache-2.0)\n" in generated.stderr
    assert (pulled.returncode, pulled.stdout.splitlines()[-1]) == (0, f"try it: ipex-lookahead run {short}")
    assert generated.returncode == told.returncode == 0, generated.stderr
    assert json.loads(told.stdout)["model"] == short
    assert (removed.returncode, removed.stdout.startswith("removed smollm2: ")) == (0, True), removed.stderr
    assert (gone.returncode, "hint: " in gone.stderr) == (1, True)


@pytest.mark.programs
def test_what_cannot_be_run_is_said_and_a_list_of_nothing_says_what_to_do(commands):
    empty, falcon, pickled = commands(["list"], ["pull", "owner/falcon"], ["pull", "owner/pickled"])
    assert empty.returncode == 0
    assert "ipex-lookahead pull NAME" in empty.stdout
    assert falcon.returncode == 1
    assert "downloaded, but the model cannot run" in falcon.stderr
    assert "torch engine" in falcon.stderr
    assert (pickled.returncode, pickled.stdout) == (1, "")
    assert "a pickle" in pickled.stderr
    assert "hint: " in pickled.stderr


@pytest.mark.programs
def test_an_adapter_is_pulled_and_listed_and_says_how_it_runs(commands, hub):
    pulled, as_json, listed, info, run_alone = commands(
        ["pull", "owner/adapter"],
        ["list", "--json"],
        ["list"],
        ["info", "owner/adapter"],
        ["run", "owner/adapter", "x"],
    )
    assert pulled.returncode == 0, pulled.stderr
    about, _, command = pulled.stdout.splitlines()
    assert about.startswith("owner/adapter: LoRA adapter for owner/folder, ")
    assert command == "try it: ipex-lookahead chat -m owner/folder --lora owner/adapter"
    assert "training_args.bin" not in hub.fetched()
    (found,) = json.loads(as_json.stdout)["models"]
    assert (found["name"], found["kind"], found["format"]) == ("owner/adapter", "adapter", "LoRA")
    assert "its model, with --lora" in listed.stdout
    assert "owner/folder" in info.stdout
    assert "q_proj" in info.stdout
    assert (run_alone.returncode, "is a LoRA adapter, not a model; it changes owner/folder" in run_alone.stderr) == (
        1,
        True,
    )
    assert "hint: run the model with the adapter: ipex-lookahead chat -m owner/folder --lora " in run_alone.stderr
    (generated,) = commands(["generate", "-m", "owner/folder", "--lora", "owner/adapter", "-n", "2", "--json", "x"])
    assert (generated.returncode, json.loads(generated.stdout)["adapter"]) == (0, "adapter"), generated.stderr


# ---- within this process ---------------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A hub's cache made by hand, with one repository of two revisions that share a file."""
    import huggingface_hub

    folder = tmp_path / "hub"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setenv("IPEX_LOOKAHEAD_CACHE", str(tmp_path / "cache"))
    repository = folder / "models--owner--model"
    (repository / "blobs").mkdir(parents=True)
    (repository / "refs").mkdir()
    for commit, reference, files in ((COMMIT, "main", "ab"), ("f" * 40, "old", "bc")):
        (repository / "snapshots" / commit).mkdir(parents=True)
        (repository / "refs" / reference).write_text(commit)
        for name in files:
            (repository / "blobs" / name).write_bytes(b"GGUF" + name.encode() * 100)
            (repository / "snapshots" / commit / f"{name}.gguf").symlink_to(f"../../blobs/{name}")
    return folder


def listed(capsys):
    assert run(["list", "--json"]) == 0
    return {found["name"]: found for found in json.loads(capsys.readouterr().out)["models"]}


def test_revisions_damage_and_interrupted_fetches_are_listed(cache, capsys):
    (cache / "models--owner--half" / "blobs").mkdir(parents=True)
    (cache / "models--owner--half" / "blobs" / "0123.partial").write_bytes(b"x" * 500)
    (cache / "datasets--owner--data").mkdir()
    (cache / "models--owner--words" / "snapshots" / COMMIT).mkdir(parents=True)
    (cache / "models--owner--words" / "snapshots" / COMMIT / "tokenizer.json").write_text("{}")
    found = listed(capsys)
    assert set(found) == {"owner/half", "owner/model:a.gguf", "owner/model:b.gguf", "owner/model@old:b.gguf",
                          "owner/model@old:c.gguf"}  # fmt: skip
    assert (found["owner/half"]["format"], found["owner/half"]["bytes"]) == ("incomplete", 500)
    assert found["owner/model:a.gguf"]["format"] == "damaged"
    assert run(["rm", "--yes", "owner/half"]) == 0
    assert "500 bytes" in capsys.readouterr().out
    assert "owner/half" not in listed(capsys)


def test_a_file_that_another_revision_needs_stays(cache, capsys):
    blobs = cache / "models--owner--model" / "blobs"
    assert run(["rm", "--yes", "owner/model@old"]) == 0
    assert capsys.readouterr().out.startswith("removed owner/model@old: freed 104 bytes")
    assert sorted(path.name for path in blobs.iterdir()) == ["a", "b"]
    assert set(listed(capsys)) == {"owner/model:a.gguf", "owner/model:b.gguf"}


def test_nothing_outside_the_cache_is_touched(cache, tmp_path, capsys):
    precious = tmp_path / "precious.gguf"
    precious.write_bytes(b"mine")
    snapshot = cache / "models--owner--model" / "snapshots" / COMMIT
    (snapshot / "a.gguf").unlink()
    (snapshot / "a.gguf").symlink_to(precious)
    assert run(["rm", "--yes", "owner/model:a.gguf"]) == 0
    assert precious.read_bytes() == b"mine"
    for own in (precious, tmp_path):
        assert run(["rm", "--yes", str(own)]) == 1
        assert "rm deletes downloaded models only" in capsys.readouterr().err
    (cache / "models--owner--elsewhere").symlink_to(tmp_path)
    assert run(["rm", "--yes", "owner/elsewhere"]) == 1
    assert precious.exists()


@pytest.mark.parametrize("name", ["owner/absent", "owner/model:z.gguf", "owner/model@v9", "default"])
def test_what_is_not_kept_is_not_removed(name, cache, capsys):
    before = sorted(cache.rglob("*"))
    assert run(["rm", "--yes", name]) == 1
    assert "is stored here" in capsys.readouterr().err
    assert sorted(cache.rglob("*")) == before


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("answer", "status", "left"), [("n\n", 130, True), ("y\n", 0, False)])
def test_it_asks(answer, status, left, cache, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    assert run(["rm", "owner/model"]) == status
    assert "Delete owner/model (0.0 MB) from" in capsys.readouterr().err
    assert (cache / "models--owner--model").exists() is left


def test_the_default_model_is_listed_and_removed(cache, tmp_path, monkeypatch, capsys):
    from ipex_lookahead.hub import DEFAULT
    from ipex_lookahead.hub.embedded import embedded_files

    file, stamp = embedded_files(DEFAULT)
    file.parent.mkdir(parents=True)
    write_tiny_gguf(file)
    stamp.write_text("1 2")
    (file.parent / "costs").mkdir()
    assert listed(capsys)["default"]["format"] == "sym_int4"
    assert run(["rm", "-y", "default"]) == 0
    assert [path.name for path in file.parent.iterdir()] == ["costs"]


def test_a_model_that_takes_images_is_pulled_with_its_vision_part(cache, monkeypatch, capsys, tmp_path):
    from ipex_lookahead import hub
    from ipex_lookahead.cli import model_facts

    model = write_tiny_gguf(tmp_path / "m.gguf", quant="Q8_0")
    part = tmp_path / "mmproj.gguf"
    part.write_bytes(b"GGUF")
    facts = {"tower": "gemma4_vision", "bytes": 1_500_000, "file": str(part)}
    known = {None: {"problem": "there is none"}, part: facts}
    monkeypatch.setattr(model_facts, "_images", lambda checkpoint, path, mmproj: {"images": known[mmproj]})
    monkeypatch.setattr(hub, "resolve_model", lambda name, **options: model)
    monkeypatch.setattr(hub, "vision_part_of", lambda name, **options: part)
    assert run(["pull", "owner/model:m.gguf"]) == 0
    assert f"takes images: gemma4_vision, 1.5 MB\n{part}\n" in capsys.readouterr().out
    assert run(["pull", "owner/model:m.gguf", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == facts

    def fail(name, **options):
        raise InputError("owner/model has no mmproj file")

    monkeypatch.setattr(hub, "vision_part_of", fail)
    assert run(["pull", "owner/model:m.gguf"]) == 0, "the model itself runs"
    assert "warning: the model cannot take images: owner/model has no mmproj file" in capsys.readouterr().err


def test_a_vision_part_is_listed_as_one(cache, capsys):
    file = cache / "models--owner--model" / "snapshots" / COMMIT / "mmproj-F16.gguf"
    file.write_bytes(b"GGUF")
    found = listed(capsys)["owner/model:mmproj-F16.gguf"]
    assert (found["kind"], found["format"]) == ("vision", "F16")
    assert run(["list"]) == 0
    assert "its model, for images" in capsys.readouterr().out
