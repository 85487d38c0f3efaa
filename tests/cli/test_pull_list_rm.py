"""``pull``, ``list`` and ``rm``, as processes of their own against a hub on this machine."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ipex_lookahead
from ipex_lookahead.cli.main import run
from tests.support.chat_tokenizer import SIZE, chat_tokenizer
from tests.support.fake_hub import COMMIT, fake_hub
from tests.support.gguf_bytes import build, llama_parts
from tests.support.tiny import write_tiny_gguf, write_tiny_llama

ROOT = Path(ipex_lookahead.__file__).parent.parent
LETTERS = {
    "model": "gpt2",
    "pre": "gpt-2",
    "tokens": ["ab", *(chr(97 + i) for i in range(26)), *(chr(0x100 + i) for i in range(69))],
    "merges": ["a b"],
}
"""A vocabulary of letters, as a GGUF file has it."""


@pytest.fixture(scope="module")
def repositories(tmp_path_factory):
    made = write_tiny_llama(tmp_path_factory.mktemp("tiny") / "folder", vocab=SIZE)
    chat_tokenizer().save_pretrained(made)
    folder = {path.name: path.read_bytes() for path in made.iterdir()}
    ggufs = {
        f"tiny.{kind}.gguf": write_tiny_gguf(made.parent / f"{kind}.gguf", quant=kind).read_bytes()
        for kind in ("Q4_0", "Q8_0")
    }
    entries, tensors = llama_parts()
    lies = bytes(build([(k, t, "falcon" if v == "llama" and "arch" in k else v) for k, t, v in entries], tensors).data)
    return {
        "owner/folder": {**folder, "README.md": b"---\nlicense: mit\n---\n", "pytorch_model.bin": b"pickle"},
        "owner/ggufs": ggufs,
        "owner/falcon": {"model.gguf": lies},
        "owner/pickled": {"config.json": b"{}", "pytorch_model.bin": b"pickle"},
    }


@pytest.fixture
def hub(repositories):
    with fake_hub(dict(repositories)) as made:
        yield made


@pytest.fixture
def command(hub, tmp_path):
    """``command("pull", ...)`` runs the command in a process whose hub is ours: (status, out, err); no torch in it."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    environment |= {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "hf"), "COLUMNS": "150"}
    environment |= {"IPEX_LOOKAHEAD_CACHE": str(tmp_path / "cache"), "HF_HUB_DISABLE_TELEMETRY": "1"}
    code = (
        "import sys; from ipex_lookahead.cli.main import run; code = run(sys.argv[1:]);"
        "heavy = {'torch', 'transformers'} & set(sys.modules); assert not heavy, heavy;"
        "sys.exit(code)"
    )

    def call(*arguments):
        done = subprocess.run(
            [sys.executable, "-c", code, *map(str, arguments)],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout, done.stderr

    return call


@pytest.mark.programs
def test_a_folder_is_pulled_listed_run_and_removed(command, hub, tmp_path):
    status, out, err = command("pull", "https://huggingface.co/owner/folder/tree/main")
    assert status == 0, err
    assert "looking for owner/folder on the hub" in err
    assert "owner/folder" in out.splitlines()[0]
    assert Path(out.splitlines()[1]).is_dir()
    assert "pytorch_model.bin" not in hub.fetched()

    status, out, err = command("list", "--json")
    (found,) = json.loads(out)["models"]
    assert (found["name"], found["kind"], found["format"]) == ("owner/folder", "safetensors", "fp32")
    assert found["bytes"] == sum(path.stat().st_size for path in Path(found["path"]).iterdir())
    _, out, _ = command("list")
    assert "owner/folder" in out
    assert "just now" in out

    hub.refused["owner/folder"] = (503, "")  # the hub is down: what is here serves
    status, out, err = command("info", found["name"], "--json")
    assert status == 0, err
    assert json.loads(out)["licence"] == "mit"

    status, out, err = command("rm", "owner/folder")
    assert (status, "hint: rm --yes owner/folder" in err) == (2, True)
    other = tmp_path / "hf" / "hub" / "models--owner--other"
    other.mkdir()
    status, out, err = command("rm", "--yes", "owner/folder")
    assert status == 0, err
    assert out.startswith("removed owner/folder: ")
    assert [path.name for path in (tmp_path / "hf" / "hub").glob("models--*")] == [other.name]
    assert command("rm", "--yes", "owner/folder")[0] == 1


@pytest.mark.programs
def test_one_file_of_several(command, hub, repositories, tmp_path):
    status, out, err = command("pull", "owner/ggufs")
    assert status == 0, err
    assert "owner/ggufs has 2 GGUF files; taking tiny.Q4_0.gguf" in err
    assert command("pull", "owner/ggufs:Q8_0")[0] == 0
    status, out, err = command("list", "--json")
    names = {found["name"]: found["format"] for found in json.loads(out)["models"]}
    assert names == {"owner/ggufs:tiny.Q4_0.gguf": "sym_int4", "owner/ggufs:tiny.Q8_0.gguf": "sym_int8"}
    size = len(repositories["owner/ggufs"]["tiny.Q8_0.gguf"])
    status, out, err = command("rm", "-y", "owner/ggufs:Q8_0")
    assert f"{size:,} bytes" in out
    blobs = list((tmp_path / "hf" / "hub" / "models--owner--ggufs" / "blobs").iterdir())
    assert [blob.stat().st_size for blob in blobs] == [len(repositories["owner/ggufs"]["tiny.Q4_0.gguf"])]
    assert command("rm", "-y", "owner/ggufs:tiny.Q4_0.gguf")[0] == 0
    assert not (tmp_path / "hf" / "hub" / "models--owner--ggufs").exists(), "nothing is left to keep"


@pytest.mark.programs
def test_a_short_name_is_pulled_run_and_removed(command, hub, tmp_path):
    short, repo = "smollm2-360m", "HuggingFaceTB/SmolLM2-360M-Instruct-GGUF"
    words = {f"tokenizer.ggml.{key}": value for key, value in LETTERS.items()}
    made = write_tiny_gguf(tmp_path / "made.gguf", quant="Q8_0", metadata=words)
    hub.repositories[repo] = {"smollm2-360m-instruct-q8_0.gguf": made.read_bytes()}
    status, out, err = command("run", short, "ab", "-n", "3", "--hide-accepted")
    assert status == 0, err
    assert f"looking for {repo} on the hub" in err
    assert "3 tokens" in err
    hub.refused[repo] = (503, "")  # it is kept: the hub is not needed any more
    status, out, err = command("pull", short)
    assert (status, out.splitlines()[-1]) == (0, f"try it: ipex-lookahead run {short}"), err
    for arguments in (("generate", "-m", short, "-n", "2", "ab"), ("info", short, "--json")):
        status, out, err = command(*arguments)
        assert status == 0, err
    assert json.loads(out)["model"] == short
    status, out, err = command("rm", "--yes", short)
    assert (status, out.startswith(f"removed {short}: ")) == (0, True), err
    status, out, err = command("run", short, "ab")
    assert (status, "hint: " in err) == (1, True)


@pytest.mark.programs
def test_what_cannot_be_run_is_said(command):
    status, out, err = command("pull", "owner/falcon")
    assert status == 1
    assert "the model was fetched, but cannot run" in err
    assert "torch engine" in err
    status, out, err = command("pull", "owner/pickled")
    assert (status, out) == (1, "")
    assert "a pickle" in err
    assert "hint: " in err


@pytest.mark.programs
def test_list_of_nothing(command):
    status, out, err = command("list")
    assert status == 0
    assert "ipex-lookahead pull NAME" in out


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
    assert capsys.readouterr().out.startswith("removed owner/model@old: 104 bytes")
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
        assert "only models that were fetched are removed" in capsys.readouterr().err
    (cache / "models--owner--elsewhere").symlink_to(tmp_path)
    assert run(["rm", "--yes", "owner/elsewhere"]) == 1
    assert precious.exists()


@pytest.mark.parametrize("name", ["owner/absent", "owner/model:z.gguf", "owner/model@v9", "default"])
def test_what_is_not_kept_is_not_removed(name, cache, capsys):
    before = sorted(cache.rglob("*"))
    assert run(["rm", "--yes", name]) == 1
    assert "is not kept on this machine" in capsys.readouterr().err
    assert sorted(cache.rglob("*")) == before


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("answer", "status", "left"), [("n\n", 130, True), ("y\n", 0, False)])
def test_it_asks(answer, status, left, cache, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    assert run(["rm", "owner/model"]) == status
    assert "remove owner/model, 0.0 MB, from" in capsys.readouterr().err
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
