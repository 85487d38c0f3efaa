"""``configs/``: every file there is run by a command; and ``--config`` is an option of every command."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead.cli import loading
from ipex_lookahead.cli.main import cli, run
from ipex_lookahead.cli.options import Option
from tests.bench.test_run import Model
from tests.support.chat_tokenizer import SIZE, chat_tokenizer, write_chat_llama
from tests.support.family_table import variants
from tests.support.mtp_folders import with_mtp

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


def presets(kind: str) -> Any:
    return pytest.mark.parametrize("file", sorted((CONFIGS / kind).glob("*.yaml")), ids=lambda file: file.stem)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    made = write_chat_llama(tmp_path_factory.mktemp("models") / "tiny", context=512)
    return str(made)


@pytest.fixture(scope="module")
def with_head(tmp_path_factory) -> str:
    made = tmp_path_factory.mktemp("models") / "head"
    with_mtp(made, "qwen3_5_text", variants("qwen3_5_text")[0], vocab_size=SIZE)
    chat_tokenizer().save_pretrained(made)
    return str(made)


def answer(capsys: Any, folder: str, *arguments: str) -> dict[str, Any]:
    assert run(["generate", "hello hello hello", "--json", "-n", "40", "--threads", "1", "-m", folder, *arguments]) == 0
    return json.loads(capsys.readouterr().out)


# ---- the files -------------------------------------------------------------------------------------------------------


@presets("lookahead")
def test_a_preset_of_lookahead_drafts_and_changes_nothing(file, folder, with_head, capsys):
    says = yaml.safe_load(file.read_text(encoding="utf-8"))
    folder = with_head if says["strategy"] == "head" else folder
    beside = {"draft_model": ["--draft-model", folder], "self_speculation": ["--low-bit", "sym_int8"]}
    arguments = beside.get(says["strategy"], [])
    plain = answer(capsys, folder, "--lookahead", "0", *arguments)
    ahead = answer(capsys, folder, "--config", str(file), "--no-adaptive", *arguments)
    assert ahead["token_ids"] == plain["token_ids"]
    assert ahead["lookahead"] == says["num_draft_tokens"]
    sources = {"auto": {"suffix", "recycling"}}.get(says["strategy"], {says["strategy"]})
    assert set(ahead["drafted_by_source"]) <= sources
    assert sum(ahead["drafted_by_source"].values()) > 0


@presets("formats")
def test_a_preset_of_formats_is_a_models_format(file, folder, capsys):
    found = answer(capsys, folder, "--low-bit", str(file))
    assert found["low_bit"] == file.name
    assert len(found["token_ids"]) > 1


@presets("serve")
def test_a_preset_of_serving_serves(file, folder, monkeypatch, capsys):
    """With all that it says, up to where it would listen."""
    from ipex_lookahead.serving import run as serving

    asked: list[Any] = []

    def bind(host: str, port: int) -> Any:
        asked.append((host, port))
        raise KeyboardInterrupt

    monkeypatch.setattr(serving, "bind", bind)
    assert run(["serve", "-m", folder, "--config", str(file)]) == 130
    says = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert asked == [(says.get("host", "127.0.0.1"), 8080)]


@presets("bench")
def test_a_preset_of_benchmarks_runs(file, monkeypatch, tmp_path, capsys):
    asked: list[dict[str, Any]] = []

    def load(name: str, **options: Any) -> Any:
        model = Model()
        model.engine.max_context = 8192
        asked.append({"name": name, **options})
        return model

    monkeypatch.setattr(loading, "load_text", load)
    assert run(["bench", "run", str(file), "--output", str(tmp_path / "out"), "--no-pictures", "--json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    says = yaml.safe_load(file.read_text(encoding="utf-8"))
    several = says["batch_size"] if isinstance(says["batch_size"], list) else [says["batch_size"]]
    low_bits = says.get("low_bit", [None])
    assert len(report["cases"]) == len(low_bits) * len(says["in_out_pairs"]) * len(several)
    assert {one["name"] for one in asked} == set(says["repo_id"])
    assert [one["low_bit"] for one in asked] == low_bits
    assert {one["device"] for one in asked} == {says.get("device")}
    assert (tmp_path / "out" / "report.html").is_file()


def test_every_file_is_run_here_and_stands_in_the_readme():
    kinds = ("lookahead", "formats", "bench")
    files = {f"{kind}/{file.name}" for kind in kinds for file in (CONFIGS / kind).iterdir()}
    text = (CONFIGS / "README.md").read_text(encoding="utf-8")
    assert files == {name for name in re.findall(r"\[([\w/]+\.yaml)\]\(", text) if name.split("/")[0] in kinds}
    for file in files:
        assert (CONFIGS / file).read_text(encoding="utf-8").startswith("# "), f"{file} does not say what it is for"


# ---- every command ---------------------------------------------------------------------------------------------------


def commands(command: click.Command = cli, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Command]]:
    if not isinstance(command, click.Group):
        return [(path, command)]
    context = click.Context(command)
    found = [(name, command.get_command(context, name)) for name in command.list_commands(context)]
    return [leaf for name, inner in found if inner is not None for leaf in commands(inner, (*path, name))]


def options_of(command: click.Command) -> list[str]:
    names = [max(param.opts, key=len).lstrip("-") for param in command.params if isinstance(param, Option)]
    return [name for name in names if name not in ("config", "help", "debug", "version")]


@pytest.mark.parametrize(("path", "command"), [pytest.param(*found, id=" ".join(found[0])) for found in commands()])
def test_every_command_reads_a_config_and_names_the_nearest_key(path, command, tmp_path, capsys):
    file = tmp_path / "settings.yaml"
    name = " ".join(path)
    for option in options_of(command)[:1]:
        wrong = option + "s" if not option.endswith("s") else option[:-1] + "z"
        file.write_text(f"{name}: {{{wrong}: 1}}\n", encoding="utf-8")
        assert run([*path, "--config", str(file)]) == 2
        err = capsys.readouterr().err
        assert f"sets '{wrong}' of {name}, which it does not have" in err
        assert f"did you mean {option}?" in err
    file.write_text("lokahead: 1\n", encoding="utf-8")
    assert run([*path, "--config", str(file)]) == 2
    assert "did you mean lookahead?" in capsys.readouterr().err


def test_a_plan_is_refused_in_its_own_words(tmp_path, capsys):
    """Its keys look like Python's arguments, which errors spell as options everywhere else."""
    (tmp_path / "plan.yaml").write_text("low_bits: sym_int4\n")
    assert run(["bench", "run", str(tmp_path / "plan.yaml"), "--output", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err.splitlines()
    assert "unknown key 'low_bits': choose one of repo_id," in said[0]
    assert ", low_bit, " in said[0]
    assert said[1] == "hint: did you mean low_bit?"
