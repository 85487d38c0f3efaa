"""Without torch, and without the packages of other extras: what goes on, and one sentence for what does not."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

import ipex_lookahead
from ipex_lookahead.cli.main import run
from ipex_lookahead.cli.running import run_command
from ipex_lookahead.errors import EngineError, LookaheadError, MissingPackageError
from ipex_lookahead.runtime import loading as auto
from ipex_lookahead.system.extras import installing, need_torch, torch_missing
from tests.support.chat_tokenizer import write_chat_llama

ROOT = Path(__file__).resolve().parent.parent.parent
CPU_BUILD = "pip install torch --index-url https://download.pytorch.org/whl/cpu && pip install 'ipex-lookahead[torch]'"
FROM_SOURCE = ("README.md", "start.md", "tutorial.md")
BARE = """
import sys
sys.modules.update(dict.fromkeys(("torch", "transformers"), None))  # as where they are not installed
from ipex_lookahead.cli.main import main
main()
"""


@pytest.fixture
def bare(monkeypatch):
    """This process as one in which torch and transformers are not installed."""
    for name in ("torch", "transformers"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_chat_llama(tmp_path_factory.mktemp("models") / "tiny", context=512)


def command(*words: str, says: str = "") -> subprocess.CompletedProcess[str]:
    """The command line in a process that has neither torch nor transformers."""
    return subprocess.run(
        [sys.executable, "-c", BARE, *words], input=says, capture_output=True, text=True, cwd=ROOT, timeout=300
    )


def test_both_are_here():
    assert torch_missing() == ""
    need_torch("nothing")


def test_the_sentence(bare):
    assert torch_missing() == "torch and transformers"
    with pytest.raises(MissingPackageError) as caught:
        need_torch("it")
    assert str(caught.value) == "it needs torch and transformers, which are not installed"
    assert caught.value.hint == CPU_BUILD


def test_one_of_them(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(EngineError, match=r"^it needs torch, which is not installed"):
        need_torch("it")


@pytest.mark.parametrize("name", ["AutoModelForCausalLM", "optimize_model", "wrap"])
def test_names_of_the_package_say_it_when_they_are_imported(bare, name):
    with pytest.raises(ImportError, match=rf"^ipex_lookahead\.{name} needs torch") as caught:
        getattr(ipex_lookahead, name)
    assert isinstance(caught.value, LookaheadError)
    assert caught.value.hint == CPU_BUILD


def test_loading_says_it(bare, folder):
    from ipex_lookahead import transformers

    for load in (transformers.AutoModelForCausalLM, transformers.AutoModel):
        with pytest.raises(MissingPackageError, match="which are not installed") as caught:
            load.from_pretrained(folder, progress=False)
        assert caught.value.hint == CPU_BUILD


def test_an_engine_that_is_torchs_says_it_and_why_it_was_chosen(bare, folder, tmp_path):
    with pytest.raises(MissingPackageError, match=r"^engine='torch' \(requested\) needs torch and transformers"):
        auto.load_text_model(str(folder), engine="torch", progress=False)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "falcon", "architectures": ["FalconForCausalLM"]}))
    with pytest.raises(MissingPackageError, match=r"^engine='torch' \(the native engine has no falcon"):
        auto.load_text_model(str(tmp_path), progress=False)


def test_an_import_that_nobody_foresaw_is_the_same_sentence(bare, capsys):
    @click.command
    def unforeseen():
        import torch  # noqa: F401

    assert run_command(unforeseen, []) == 1
    assert capsys.readouterr().err == f"error: this needs torch, which is not installed\nhint: {CPU_BUILD}\n"


@pytest.mark.parametrize(
    "words", [("generate", "--raw", "-n", "4", "one two"), ("chat", "-n", "4")], ids=lambda w: w[0]
)
def test_answers_need_neither(folder, words):
    done = command(words[0], "-m", str(folder), "--lookahead", "2", *words[1:], says="one two\n")
    assert done.returncode == 0, done.stderr


def test_a_model_is_saved_without_them(folder, tmp_path):
    """The same text, the same ids, and the same bytes as with them."""
    bare, full = tmp_path / "bare", tmp_path / "full"
    done = command("quantize", str(folder), str(bare), "--low-bit", "sym_int4")
    assert done.returncode == 0, done.stderr
    assert run(["quantize", str(folder), str(full), "--low-bit", "sym_int4"]) == 0
    assert sorted(one.name for one in bare.iterdir()) == sorted(one.name for one in full.iterdir())
    for one in bare.iterdir():
        assert one.read_bytes() == (full / one.name).read_bytes(), one.name
    answers = [
        command("generate", "-m", str(model), *more, "--json", "-n", "8", "one two")
        for model, more in ((folder, ("--low-bit", "sym_int4")), (bare, ()))
    ]
    texts = [json.loads(one.stdout)["text"] for one in answers]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("model", [False, True])
def test_the_machine_and_a_model_are_told_without_them(folder, model):
    done = command("info", *([str(folder)] if model else []))
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.programs
def test_python_needs_neither(folder):
    code = BARE.split("from ipex")[0] + f"from ipex_lookahead import LLM; print(LLM({str(folder)!r}).chat('one').stats)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.stdout.startswith("GenerationStats(tokens="), done.stderr


@pytest.mark.programs
def test_the_server_answers_without_them():
    """Every module of the server, and what it loads a model with."""
    code = BARE.replace("main()", "from ipex_lookahead.serving import run, server; print('loaded')")
    code = code.replace("from ipex_lookahead.cli.main import main", "from ipex_lookahead.cli import serve")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "loaded\n", done.stderr


def test_every_extra_is_one_that_the_package_has():
    """And is spelled alike wherever something is to be installed; some pages say how the sources are."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    table = project.split("[project.optional-dependencies]\n")[1].split("\n[")[0]
    extras = set(re.findall(r"^(\w+) = ", table, re.MULTILINE))
    asked = re.compile(r"""(['"]?)(ipex-lookahead|\.)\[([\w,]+)\]""")
    pages = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("examples/*"),
        *ROOT.glob("ipex_lookahead/**/*.py"),
    ]
    found = 0
    for page in (one for one in pages if one.is_file()):
        for line in page.read_text(encoding="utf-8").splitlines():
            for quote, what, names in asked.findall(line) if "pip install" in line else ():
                assert quote == "'", f"{page.relative_to(ROOT)}: a shell takes [ for a pattern: {line.strip()}"
                assert what != "." or page.name in FROM_SOURCE, f"{page.relative_to(ROOT)}: {line.strip()}"
                assert set(names.split(",")) <= extras, f"{page.relative_to(ROOT)}: {line.strip()}"
                found += 1
    assert found > 5
    assert installing("serve") == "pip install 'ipex-lookahead[serve]'"


def test_nothing_is_printed_where_torch_is_absent(folder):
    """No library complains of torch's absence in the middle of an answer."""
    done = command("generate", "-m", str(folder), "--raw", "--quiet", "-n", "2", "one")
    assert done.stderr == ""
    assert done.stdout
