"""``from_pretrained(kv_cache_dir=...)``: the next process reads the beginning of a prompt; the tokens are the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead import AutoModelForCausalLM, InputError
from ipex_lookahead.decoding import disk_cache
from ipex_lookahead.runtime.cache_files import write_all
from tests.support.tiny import write_tiny_llama


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(disk_cache, "FILE_SECONDS", 0.0)
    monkeypatch.setattr(disk_cache, "FIRST_RATE", 1e18)
    write_tiny_llama(tmp_path / "model", context=1024)
    return tmp_path


def test_the_next_process_reads_what_was_stored(folder: Path) -> None:
    prompt = torch.randint(3, 90, (1, 200), generator=torch.Generator().manual_seed(1))
    plain = AutoModelForCausalLM.from_pretrained(folder / "model")
    options = {"max_new_tokens": 12, "lookahead": 3, "do_sample": True, "temperature": 0.8, "seed": 3}
    first = plain.generate(prompt, **options)
    longer = torch.cat([first, prompt[:, :20]], 1)
    wanted = plain.generate(longer, **options)
    for asked, answer, cached in ((prompt, first, 0), (longer, wanted, 192)):
        model = AutoModelForCausalLM.from_pretrained(folder / "model", kv_cache_dir=folder / "kv")
        assert torch.equal(model.generate(asked, **options), answer)
        assert model.runtime.stats.cached_tokens >= cached
        both = model.generate(torch.cat([asked, asked]), max_new_tokens=2)  # of several prompts, each is read
        assert both.shape[0] == 2
        write_all([model.runtime._prefixes])


def test_a_size_needs_a_folder(folder: Path) -> None:
    with pytest.raises(InputError, match="kv_cache_disk needs kv_cache_dir"):
        AutoModelForCausalLM.from_pretrained(folder / "model", kv_cache_disk=2**30)
