"""What ``config.json`` may say to the torch engine: anything, and it is a load, or an error of ours, within bounds."""

from __future__ import annotations

import json
import random
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ipex_lookahead import (
    AutoModelForCausalLM,
    ContextLengthError,
    EngineError,
    ModelFormatError,
    UnsupportedModelError,
)
from ipex_lookahead.engines.foreign import foreign_config
from tests.gates import cases, seed
from tests.support.families import FAMILIES, write

VALUES: tuple[Any, ...] = (
    *(0, -1, 1, 7, 10**5, 10**8, 2**31, 2**53, 2**80, 1e308, 0.0, 5e-324),
    *("many", "", True, None, [], {}, [1, 10**9], {"auto_map": {"AutoConfig": "os.system"}}),
)
CASES = cases(50, 8_000)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    names = [name for name in FAMILIES if name != "llama"]
    return {name: write(tmp_path_factory.mktemp("m") / name.replace(" ", "-"), name) for name in names}


def load(folder: Path, **values: Any) -> Any:
    """With the values in the config; the file is as it was afterwards."""
    file = folder / "config.json"
    before = file.read_text()
    file.write_text(json.dumps({**json.loads(before), **values}))
    try:
        with little_memory():
            return AutoModelForCausalLM.from_pretrained(folder, engine="torch", threads=1, progress=False)
    finally:
        file.write_text(before)


@contextmanager
def little_memory() -> Iterator[None]:
    """Half a gigabyte more than the process has: beyond that a MemoryError, and so a failure."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (512 << 20), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.parametrize(
    ("family", "values", "named"),
    [
        ("qwen2", {"num_hidden_layers": 100_000}, "num_hidden_layers"),
        ("gpt2", {"n_layer": 2**40}, "n_layer"),
        ("gpt2", {"num_labels": 100_000_000}, "num_labels"),
        ("mixtral", {"num_local_experts": 10**7}, "num_local_experts"),
        ("gpt2", {"n_positions": 10**6}, "many times as large"),  # a causal mask of a terabyte
        ("gpt2", {"vocab_size": 2**40}, "many times as large"),
        ("gpt2", {"n_head": 0}, "ZeroDivisionError"),
        ("gpt2", {"n_layer": "many"}, "refused by transformers' gpt2"),
        ("gpt2", {"n_embd": 2**90}, "n_embd"),
        ("qwen2", {"rope_parameters": {"rope_type": "dynamic", "factor": 2**70}}, "factor"),
    ],
)
def test_numbers_are_bounded_by_the_tensors(
    folders: dict[str, Path], family: str, values: dict[str, Any], named: str
) -> None:
    with pytest.raises((ModelFormatError, UnsupportedModelError), match=named):
        load(folders[family], **values)


def test_keys_that_would_import_code_are_dropped_at_every_depth(tmp_path: Path) -> None:
    code = {"auto_map": {"AutoConfig": "evil.Config"}, "_attn_implementation_internal": "owner/kernel"}
    raw = {"model_type": "gpt2", **code, "text_config": {**code, "inner": [{**code, "kept": 1}]}}
    _, plain = foreign_config(raw, tmp_path)
    assert plain == {"model_type": "gpt2", "text_config": {"inner": [{"kept": 1}]}}


def test_any_value_of_any_key_is_a_load_or_an_error_of_ours(folders: dict[str, Path]) -> None:
    chance = random.Random(seed())
    seen = {"loaded": 0, "refused": 0}
    for number in range(CASES):
        family = chance.choice(sorted(folders))
        keys = sorted(json.loads((folders[family] / "config.json").read_text()))
        values = {chance.choice(keys): chance.choice(VALUES) for _ in range(chance.choice((1, 1, 2)))}
        try:
            model = load(folders[family], **values)
            model.generate([[5, 9, 33]], max_new_tokens=2, eos_token_id=None, pad_token_id=0)
            seen["loaded"] += 1
        except (ModelFormatError, UnsupportedModelError, EngineError, ContextLengthError):
            seen["refused"] += 1
        except BaseException as error:
            raise AssertionError(f"case {number}: {family} with {values}: {error!r}") from error
    assert min(seen.values()) > CASES // 10, seen
