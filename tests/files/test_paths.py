"""What no file can be called, as any path that a caller hands over: an error of ours, before anything is done."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead import AutoModelForCausalLM, InputError, LookaheadConfig, LookaheadError
from ipex_lookahead.bench.recording import load as load_recording
from ipex_lookahead.checkpoints import family_of, kind_of, open_checkpoint, open_other_family
from ipex_lookahead.checkpoints.hf_folder import write_hf_folder
from ipex_lookahead.cli.prompts import read_prompts
from ipex_lookahead.drafting.store import Store
from ipex_lookahead.files.paths import given_path
from tests.support.tiny import write_tiny_llama

BAD = {
    "null byte": "a\0b",
    "no letters of a file's": "\ud800",
    "nobody's home": "~no-such-user/x",
    "a long name": "x" * 300,
    "a long path": "x/" * 3000,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("m") / "model")


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, load_in_low_bit="sym_int4", threads=1, progress=False)


Call = Callable[[Any, Path, str], object]
CALLS: dict[str, Call] = {
    "from_pretrained": lambda model, folder, path: AutoModelForCausalLM.from_pretrained(path, progress=False),
    "from_gguf": lambda model, folder, path: AutoModelForCausalLM.from_gguf(path, progress=False),
    "load_low_bit": lambda model, folder, path: AutoModelForCausalLM.load_low_bit(path, progress=False),
    "config": lambda model, folder, path: AutoModelForCausalLM.from_pretrained(folder, config=path, progress=False),
    "rules": lambda model, folder, path: AutoModelForCausalLM.from_pretrained(
        folder, load_in_low_bit=path + ".yaml", progress=False
    ),
    "save_low_bit": lambda model, folder, path: model.save_low_bit(path),
    "store": lambda model, folder, path: model.generate(
        [[1, 2, 3]], max_new_tokens=2, lookahead=LookaheadConfig(strategy="suffix", store=path)
    ),
    "Store.open": lambda model, folder, path: Store.open(path, 96),
    "Store.save": lambda model, folder, path: Store(96).save(path),
    "draft_model": lambda model, folder, path: model.generate([[1, 2, 3]], max_new_tokens=2, draft_model=path),
    "from_yaml": lambda model, folder, path: LookaheadConfig.from_yaml(path),
    "open_checkpoint": lambda model, folder, path: open_checkpoint(path),
    "open_other_family": lambda model, folder, path: open_other_family(path),
    "kind_of": lambda model, folder, path: kind_of(path),
    "family_of": lambda model, folder, path: family_of(path),
    "write_hf_folder": lambda model, folder, path: write_hf_folder(open_checkpoint(folder), path),
    "prompts": lambda model, folder, path: read_prompts([path]),
    "recording": lambda model, folder, path: load_recording(Path(path)),
}


@pytest.mark.parametrize("path", BAD.values(), ids=list(BAD))
@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
def test_no_path_is_an_error_of_pythons(
    model: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call, path: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LookaheadError):
        call(model, folder, path)
    assert not any(tmp_path.iterdir())


def test_what_is_said_of_a_path_that_is_none(tmp_path: Path) -> None:
    assert given_path("~") == Path.home()
    assert given_path(tmp_path / "absent" / "too") == tmp_path / "absent" / "too"
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert given_path(tmp_path / "loop") == tmp_path / "loop"
    for path, says in (
        ("a\0b", r"'a\\x00b' is not a valid path: .*null"),
        (5, "5 is not a valid path"),
        ("x" * 300, "name too long"),
    ):
        with pytest.raises(InputError, match=says) as caught:
            given_path(path)  # type: ignore[arg-type]
        assert len(str(caught.value)) < 300


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may look into any folder")
def test_a_folder_that_may_not_be_looked_into(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    with pytest.raises(InputError, match="is not accessible: Permission denied"):
        given_path(tmp_path / "closed" / "x")


def test_presets_go_by_name_and_files_come_first(tmp_path, monkeypatch):
    from ipex_lookahead.files.paths import PRESETS, given_preset, preset_names

    monkeypatch.chdir(tmp_path)
    assert given_preset("laptop", "bench") == PRESETS / "bench" / "laptop.yaml"
    assert given_preset("laptop", "serve") == PRESETS / "serve" / "laptop.yaml"
    assert given_preset("laptop", "lookahead") == Path("laptop")
    (tmp_path / "laptop").write_text("")
    assert given_preset("laptop", "bench") == Path("laptop")
    assert {"auto", "suffix"} <= {*preset_names("lookahead")}
    assert LookaheadConfig.from_yaml("auto").strategy == "auto"
