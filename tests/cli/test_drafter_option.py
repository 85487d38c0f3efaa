"""``--drafter`` and ``--draft-vocab``: a named head drafts, the text stays what it is, and ``info`` tells of it."""

from __future__ import annotations

import gc
import io
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", minversion="5", reason="the tiny models are transformers 5's")
from safetensors.torch import load_file, save_file

from ipex_lookahead.bench.decode import decode
from ipex_lookahead.bench.exact import exact
from ipex_lookahead.cli.chat import chat
from ipex_lookahead.cli.generate import generate
from ipex_lookahead.cli.main import run
from ipex_lookahead.cli.serve import serve
from ipex_lookahead.drafting.heads.chain import HeadChain
from ipex_lookahead.hub import recommended
from ipex_lookahead.hub.recommended import recommended_models
from tests.support.chat_tokenizer import SIZE, chat_tokenizer
from tests.support.eagle3_folders import Head, Shape
from tests.support.family_table import Variant, variants
from tests.support.gguf_families import write_gguf
from tests.support.mtp_folders import block_alone, with_mtp
from tests.support.tiny_families import config_of, with_weights, write_folder

FAMILY = "qwen3_5_text"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``model`` without a block, ``alone.gguf`` with nothing else, and ``other``, whose hidden size is another."""
    root = tmp_path_factory.mktemp("drafter")
    target, block = with_mtp(root / "model", FAMILY, variants(FAMILY)[0], vocab_size=SIZE)
    write_gguf(root / "alone.gguf", target, change=block_alone(block, target.config.num_hidden_layers))
    with_mtp(root / "other", FAMILY, variants(FAMILY)[0], vocab_size=SIZE, hidden_size=128)
    file = root / "model" / "model.safetensors"
    save_file(
        {name: one for name, one in load_file(file).items() if not name.startswith("mtp.")}, file, {"format": "pt"}
    )
    chat_tokenizer().save_pretrained(root / "model")
    return root


def answer(capsys: Any, *arguments: str) -> dict[str, Any]:
    assert run([*arguments, "--threads", "1", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


GREEDY = ["--temperature", "0"]
DRAFTED = ["--strategy", "head", "--lookahead", "4", "--no-adaptive"]


def test_generate(made: Path, capsys: Any) -> None:
    arguments = ["generate", "--raw", "Once upon", "-m", str(made / "model"), "-n", "24"]
    plain = answer(capsys, *arguments, "--lookahead", "0")
    drafted = answer(capsys, *arguments, *DRAFTED, "--drafter", str(made / "alone.gguf"), "--draft-vocab", "0")
    assert drafted["token_ids"] == plain["token_ids"]
    assert drafted["drafted_by_source"]["head"] > 0


@pytest.mark.parametrize("command", [["chat", "-m"], ["run"]])
def test_chat_and_run(made: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    said, drafted, propose = [], [], HeadChain.propose
    monkeypatch.setattr(HeadChain, "propose", lambda self, budget: drafted.append(propose(self, budget)) or drafted[-1])
    for extra in (["--lookahead", "0"], [*DRAFTED, "--drafter", str(made / "alone.gguf")]):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"hello\n"), encoding="utf-8"))
        assert run([*command, str(made / "model"), "--threads", "1", "-n", "12", "--no-history", *GREEDY, *extra]) == 0
        said.append(capsys.readouterr().out)
        assert any(one.tokens for one in drafted) == bool(len(said) - 1)
    assert said[0] == said[1]


@pytest.mark.parametrize(
    ("command", "options", "strategy", "lookahead"),
    [
        (generate, [], None, "auto"),
        (generate, ["--lookahead", "4"], "head", 4),
        (generate, ["--lookahead", "0"], None, 0),
        (generate, ["--lookahead", "auto"], None, "auto"),
        (generate, ["--strategy", "suffix", "--lookahead", "4"], "suffix", 4),
        (chat, [], None, "auto"),
        (serve, [], None, "auto"),
        (serve, ["--lookahead", "4"], "head", 4),
        (decode, [], ("auto", "head"), ()),
        (decode, ["--lookahead", "3", "--lookahead", "auto"], ("head",), (3, "auto")),
        (decode, ["--lookahead", "auto"], (), ("auto",)),
        (decode, ["--strategy", "suffix"], ("suffix",), ()),
        (exact, [], (), None),
    ],
)
def test_a_head_that_was_named_drafts(command: Any, options: list[str], strategy: Any, lookahead: Any) -> None:
    """Whatever is said of lookahead, unless another strategy is: a head that is named and left alone is a surprise."""
    params = command.make_context("x", [*options, "--drafter", "head.gguf"]).params
    assert (params["strategy"], params.get("lookahead")) == (strategy, lookahead)
    without = command.make_context("x", options).params
    assert without["strategy"] != "head"


def test_a_draft_model_that_was_named_drafts_whatever_else_is_said() -> None:
    """With --no-adaptive the text alone had drafted."""
    for options in ([], ["--no-adaptive"], ["--lookahead", "3"]):
        assert decode.make_context("x", [*options, "--draft-model", "m.gguf"]).params["strategy"] == ("draft_model",)


@pytest.mark.parametrize("command", [["generate", "x"], ["bench", "exact", "--limit", "1"]])
def test_a_head_of_another_model_is_one_sentence(made: Path, capsys: Any, command: list[str]) -> None:
    assert run([*command, "-m", str(made / "model"), "--threads", "1", "--drafter", str(made / "other")]) == 1
    err = capsys.readouterr().err
    assert "is a head for another model, with hidden size 128, not 64" in err
    assert "hint: name a head that was trained for this model with --drafter, or leave it out" in err
    assert "Traceback" not in err


def test_a_vocabulary_for_no_head(made: Path, capsys: Any) -> None:
    assert run(["generate", "x", "-m", str(made / "model"), "--threads", "1", "--draft-vocab", "100"]) == 1
    err = capsys.readouterr().err
    assert "error: --draft-vocab 100 needs a drafting head, but no usable head was found for the model" in err
    assert "hint: name one with --drafter, or leave it out" in err


def test_info(made: Path, capsys: Any, tmp_path: Path) -> None:
    def facts(*arguments: str) -> Any:
        assert run(["info", *arguments, "--json"]) == 0
        return json.loads(capsys.readouterr().out).get("drafter")

    model, alone = str(made / "model"), str(made / "alone.gguf")
    assert facts(model) is None
    found = facts(model, "--drafter", alone)
    assert (found["kind"], found["draft_vocab"], found["file"]) == ("mtp", SIZE, alone)
    assert facts(model, "--drafter", alone, "--draft-vocab", "100")["draft_vocab"] == 100
    own = facts(str(made / "other"), "--draft-vocab", "0")
    assert (own["kind"], own["draft_vocab"]) == ("mtp", SIZE)
    assert "file" not in own
    shutil.copytree(made / "model", tmp_path / "model")
    shutil.copy(alone, tmp_path / "model" / "mtp-model.gguf")
    assert facts(str(tmp_path / "model"))["file"].endswith("mtp-model.gguf")
    assert facts(str(tmp_path / "model"))["bytes"] == found["bytes"] > 0
    assert run(["info", str(tmp_path / "model")]) == 0
    out = capsys.readouterr().out
    assert "weights of the head" in out
    assert "draft vocabulary" in out
    assert run(["info", model, "--drafter", str(made / "other")]) == 1
    assert "is a head for another model" in capsys.readouterr().err
    assert run(["info", "--drafter", alone]) == 2


def test_info_names_tensors_of_a_head_that_nothing_reads(capsys: Any, tmp_path: Path) -> None:
    """``input_norm`` is there, and ``norm_before_fc: false`` says that the head does not read it."""
    target = with_weights(config_of("llama", Variant("six layers", {"num_hidden_layers": 6})))
    model = write_folder(tmp_path / "model", target)
    head = Head(Shape(norm_before_fc=True), target)
    assert run(["info", str(model), "--drafter", str(head.write_flat(tmp_path / "read")), "--json"]) == 0
    assert "unread" not in json.loads(capsys.readouterr().out)["drafter"]
    unread = str(head.write_flat(tmp_path / "unread", norm_before_fc=False))
    assert run(["info", str(model), "--drafter", unread, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["drafter"]["unread"] == ["input_norm.weight"]
    assert run(["info", str(model), "--drafter", unread]) == 0
    assert re.search("its unused tensors +input_norm.weight", capsys.readouterr().out)


@pytest.mark.parametrize("where", ["the model's own", "a file", "a folder with a file"])
def test_info_tells_what_came_true_so_far(made: Path, capsys: Any, tmp_path: Path, where: str) -> None:
    own = where == "the model's own"
    source = shutil.copytree(made / "other" if own else made / "model", tmp_path / "model")
    (tmp_path / "head").mkdir()
    file = shutil.copy(made / "alone.gguf", tmp_path / "head" / "head.gguf")
    head = [] if own else ["--drafter", str(file if where == "a file" else file.parent)]
    if own:
        chat_tokenizer().save_pretrained(source)
    info = ["info", str(source), *head]
    assert run([*info, "--json"]) == 0
    assert "acceptance" not in json.loads(capsys.readouterr().out)["drafter"]
    found = answer(capsys, "generate", "--raw", "Once upon", "-m", str(source), "-n", "24", *DRAFTED, *head)
    gc.collect()
    assert run([*info, "--json"]) == 0
    known = json.loads(capsys.readouterr().out)["drafter"]["acceptance"]
    assert 0 < known["chains"] <= found["drafted_by_source"]["head"]
    assert all(0 <= rate <= 1 for rate in known["by_depth"])
    assert run(info) == 0
    assert "acceptance so far" in capsys.readouterr().out
    assert run(["info", str(source), "--forget-costs"]) == 0
    capsys.readouterr()
    assert run([*info, "--json"]) == 0
    assert "acceptance" not in json.loads(capsys.readouterr().out)["drafter"]


def test_pull_fetches_what_is_recommended(
    made: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A short name that stands for files here: nothing is fetched from elsewhere."""
    known = recommended_models()
    one = next(iter(known.values()))
    own = {name: getattr(one, name) for name in one.__slots__} | {"name": "mine", "drafter": str(made / "alone.gguf")}
    monkeypatch.setattr(recommended, "recommended_models", lambda: known | {"mine": type(one)(**own)})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").symlink_to(made / "model")
    assert run(["pull", "mine"]) == 0
    out = capsys.readouterr().out
    assert f"draft head: {made / 'alone.gguf'}" in out
    assert f"run mine --drafter {made / 'alone.gguf'}" in out
    assert run(["pull", "mine", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["drafter"] == str(made / "alone.gguf")
    own["drafter"] = str(made / "none.gguf")
    assert run(["pull", "mine"]) == 0
    said = capsys.readouterr()
    assert "none.gguf cannot be used: " in said.err
    assert said.out.endswith("try it: ipex-lookahead run mine\n")


def test_quantize_keeps_it(made: Path, capsys: Any, tmp_path: Path) -> None:
    for name, more in (("a", []), ("b", ["--drafter-low-bit", "sym_int4"])):
        assert run(["quantize", str(made / "other"), str(tmp_path / name), "--low-bit", "sym_int4", *more]) == 0
        capsys.readouterr()
    sizes = []
    for name in "ab":
        assert run(["info", str(tmp_path / name), "--json"]) == 0
        sizes.append(json.loads(capsys.readouterr().out)["drafter"]["bytes"])
    assert sizes[1] < 0.75 * sizes[0]
    assert run(["quantize", str(made / "model"), str(tmp_path / "d"), "--drafter-low-bit", "sym_int8"]) == 1
    assert "--drafter-low-bit sym_int8 needs a drafting head" in capsys.readouterr().err
    assert not (tmp_path / "d").exists()
