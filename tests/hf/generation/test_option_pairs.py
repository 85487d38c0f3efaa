"""Every two options of the native engine together: the text is that of plain decoding, whatever else is set.

Options are written for one purpose and tested for it; what breaks is two of them at once (``speculative=True`` with
``kv_cache="int8"`` never worked). So no pair is left untried: ``pairwise`` gives rows in which each occurs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead import AutoModelForCausalLM, LookaheadConfig
from ipex_lookahead.drafting import PROPOSERS, SECOND_MODEL
from ipex_lookahead.engines.low_bit_copy import GAINFUL
from ipex_lookahead.errors import InputError
from tests.support.pairs import Row, pairs_of, pairwise, possible_pairs
from tests.support.tiny import write_tiny_llama

TRIED = ("fp32", "fp16", "bf16", "sym_int8", "sym_int4", "asym_int4", "mxfp4", "nf4")
"""One format for each kind of kernel: floats, scales alone, scales and minimums, a table on the integer path and one on
the float path. Formats themselves are tried one by one elsewhere."""
OPTIONS: dict[str, tuple[Any, ...]] = {
    "format": (None, *TRIED),
    "strategy": ("not said", "a number", *PROPOSERS, *SECOND_MODEL),
    "tokens": (1, 3, 8),
    "threads": (1, 2, 3),
    "kv_cache": ("fp16", "int8"),
    "speculative": (False, True),
    "mixed_precision": (False, True),
    "group_size": (32, 64),
    "adaptive": (False, True),
    "sampled": (False, True),
    "batch": (1, 3),
}
WEIGHTS = ("format", "mixed_precision", "group_size", "kv_cache")
"""What the text depends on, besides the prompt and the sampling."""
PROMPTS = [[1, 40, 7, 7, 40, 7], [0, 0, 1, 9, 30, 31], [0, 1, 50, 9, 50, 9]]
SAMPLED = {"do_sample": True, "temperature": 0.8, "top_p": 0.95, "repetition_penalty": 1.1, "seed": 11}


def allowed(row: Row) -> bool:
    """A copy in four bits of a model in four bits is refused."""
    copies = row.get("speculative") or row.get("strategy") == "self_speculation"
    return not (copies and row.get("format", "fp32") in set(TRIED) - set(GAINFUL))


ROWS = pairwise(OPTIONS, allowed)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target and a smaller draft model of one vocabulary."""
    target = write_tiny_llama(tmp_path_factory.mktemp("target"), layers=3, tie=False)
    return target, write_tiny_llama(tmp_path_factory.mktemp("draft"), layers=1, hidden=32, intermediate=64)


@pytest.fixture(scope="module")
def plain(folders: tuple[Path, Path]) -> dict[tuple[Any, ...], Any]:
    """Plain decoding on one thread, by what the text depends on; filled as it is asked for."""
    return {}


def load(folder: Path, row: Row, **others: Any) -> Any:
    return AutoModelForCausalLM.from_pretrained(
        folder,
        load_in_low_bit=row["format"],
        kv_cache=row["kv_cache"],
        mixed_precision=row["mixed_precision"],
        group_size=row["group_size"],
        progress=False,
        **others,
    )


def generate(model: Any, row: Row, **lookahead: Any) -> list[list[int]]:
    how = SAMPLED if row["sampled"] else {"do_sample": False}
    ids = torch.tensor(PROMPTS[: row["batch"]])
    return model.generate(ids, eos_token_id=None, pad_token_id=0, max_new_tokens=24, **how, **lookahead).tolist()


def lookahead_of(row: Row, draft: Any) -> dict[str, Any]:
    """The arguments of ``generate``."""
    strategy, tokens = row["strategy"], row["tokens"]
    if strategy == "not said":
        return {"max_step_draft": tokens} if row["speculative"] else {}
    if strategy == "a number":
        return {"lookahead": tokens, "adaptive": row["adaptive"]}
    config = LookaheadConfig(strategy, tokens, adaptive=row["adaptive"], draft_min_prob=0.0)
    return {"lookahead": config, **({"draft_model": draft} if strategy == "draft_model" else {})}


def test_every_pair_is_tried() -> None:
    tried = set().union(*map(pairs_of, ROWS))
    assert tried >= possible_pairs(OPTIONS, allowed)
    assert all(row.keys() == OPTIONS.keys() and allowed(row) for row in ROWS)
    assert len(ROWS) < 120  # else the greedy choice has gone astray


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(map(str, row.values())))
@pytest.mark.rotating(24)
def test_the_text_is_that_of_plain_decoding(row: Row, folders: tuple[Path, Path], plain: dict[Any, Any]) -> None:
    target, small = folders
    key = tuple(row[name] for name in WEIGHTS)
    if key not in plain:
        plain[key] = load(target, row, threads=1)
    expected = generate(plain[key], row, lookahead=0)
    model = load(target, row, threads=row["threads"], speculative=row["speculative"])
    draft = load(small, row, threads=row["threads"]) if row["strategy"] == "draft_model" else None
    assert generate(model, row, **lookahead_of(row, draft)) == expected


@pytest.mark.parametrize("low_bit", sorted(set(TRIED) - set(GAINFUL)))
def test_what_is_not_allowed_is_refused(low_bit: str, folders: tuple[Path, Path]) -> None:
    row = dict.fromkeys(OPTIONS) | {"format": low_bit, "kv_cache": "int8", "mixed_precision": False, "group_size": 32}
    with pytest.raises(InputError, match="no faster"):
        load(folders[0], row, speculative=True)
    model = load(folders[0], row)
    with pytest.raises(InputError, match="no faster"):
        model.generate(torch.tensor(PROMPTS), lookahead=LookaheadConfig("self_speculation", 3))
