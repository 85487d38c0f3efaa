"""``past_key_values`` in files: a saved cache goes on as the one that was saved, and no other file is read."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead import AutoModelForCausalLM, CacheFileError, InputError, SaveError
from tests.support.tiny import write_tiny_llama

TEXT = torch.tensor([[5, 9, 33, 2, 17, 60, 41, 8, 8, 70, 3, 26], [7, 7, 90, 4, 4, 4, 12, 51, 29, 30, 31, 6]])
MASK = torch.tensor([[1] * 12, [0] * 3 + [1] * 9])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("model") / "m", seed=5)


def load(folder: Path, **options: Any) -> Any:
    return AutoModelForCausalLM.from_pretrained(
        folder, **{"load_in_low_bit": "sym_int8", "threads": 1, "progress": False, **options}
    )


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return load(folder)


def test_a_saved_cache_goes_on_in_another_process_of_the_model(model: Any, folder: Path, tmp_path: Path) -> None:
    """Rows of different lengths, in ``forward`` and ``generate``; the cache is not changed by saving it."""
    out = model(TEXT, attention_mask=MASK, use_cache=True)
    past, file = out.past_key_values, tmp_path / "a.cache"
    past.save(file)
    past.save(str(file))  # replaces it
    assert file.stat().st_mode & 0o777 == 0o600
    more = torch.tensor([[1, 2], [3, 4]])
    mask = torch.cat([MASK, torch.ones(2, 2, dtype=MASK.dtype)], 1)
    again = load(folder)
    loaded = again.load_cache(file)
    assert (loaded.batch_size, loaded.get_seq_length()) == (2, 12)
    assert torch.equal(loaded.ids, past.ids)
    assert torch.equal(loaded.mask, past.mask)
    found = again(more, attention_mask=mask, past_key_values=loaded).logits
    assert torch.equal(found, model(more, attention_mask=mask, past_key_values=past).logits)
    answers = [
        each.generate(torch.cat([TEXT, more], 1), attention_mask=mask, past_key_values=cache, max_new_tokens=8)
        for each, cache in ((model, None), (again, again.load_cache(file)))
    ]
    assert torch.equal(*answers)


def test_files_of_other_models_and_settings_are_refused(model: Any, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.cache"
    model(TEXT, use_cache=True).past_key_values.save(file)
    shutil.copytree(folder, tmp_path / "same")
    assert load(tmp_path / "same").load_cache(file).batch_size == 2
    others = [
        load(folder, load_in_low_bit="sym_int4"),
        load(folder, kv_cache="int8"),
        load(write_tiny_llama(tmp_path / "other", seed=6)),
    ]
    for other in others:
        with pytest.raises(CacheFileError, match="belongs to another model, or to other settings"):
            other.load_cache(file)


@pytest.mark.parametrize("size", [0, 1, 10, 100, -1])
def test_damaged_files_are_refused(model: Any, tmp_path: Path, size: int) -> None:
    file = tmp_path / "a.cache"
    with pytest.raises(CacheFileError, match="cannot be read"):
        model.load_cache(file)
    model(TEXT, use_cache=True).past_key_values.save(file)
    whole = file.read_bytes()
    file.write_bytes(whole[:size])
    with pytest.raises(CacheFileError, match="truncated|not a cache file"):
        model.load_cache(file)
    middle = len(whole) // 2
    file.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    with pytest.raises(CacheFileError, match="damaged"):
        model.load_cache(file)


def test_what_cannot_be_saved_is_an_error(model: Any, folder: Path, tmp_path: Path) -> None:
    past = model(TEXT, use_cache=True).past_key_values
    with pytest.raises(SaveError, match="cannot be written"):
        past.save(tmp_path / "no folder" / "a.cache")
    past.reset()
    with pytest.raises(InputError, match="nothing to save"):
        past.save(tmp_path / "a.cache")
    torch_model = load(folder, engine="torch", load_in_low_bit=None)
    past = torch_model(TEXT, use_cache=True).past_key_values
    for deed in (lambda: past.save(tmp_path / "a.cache"), lambda: torch_model.load_cache(tmp_path / "a.cache")):
        with pytest.raises(InputError, match="torch engine cannot save KV caches: its results depend"):
            deed()
    assert not list(tmp_path.iterdir())
