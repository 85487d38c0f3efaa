"""Tests of a transformers model's abilities on a few tokens, when it is loaded.

They test two things: that steps on the cache give the logits of reading the whole text at once, and that the model
honors a four-dimensional mask with explicit positions, which trees need. The differences of logits are compared with
those of the failure in question (without the cache, without the mask), so no tolerance depends on dtype or size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from ipex_lookahead.engines.torch.cache import SequenceCache
from ipex_lookahead.engines.torch.masks import CONVENTIONS, depths_of, seen_by, spelled
from ipex_lookahead.errors import UnsupportedModelError, first_line
from ipex_lookahead.system.compat import text_config

PREFIX = 6
TREE = (-1, 0, 0, 1, 2, 2)
"""Parents of the tested tree."""
SAME = 0.25
"""Logits are equal if they differ by less than this fraction of the difference that the failure would make."""

_STATES = {"linear_attention", "conv", "mamba", "hybrid", "recurrent", "recurrent_attention", "hybrid_sliding"}
_ATTENTION = {"full_attention", "attention", "sliding_attention"}
"""Layer types of hybrids (Granite 4) that have a KV cache and no state."""


def refuse_unfit(model: Any) -> None:
    """Raise UnsupportedModelError for a model with a past that cannot be rolled back, judged by its config."""
    config = getattr(model, "config", None)
    if config is None or not hasattr(model, "forward"):
        raise UnsupportedModelError(
            f"a {type(model).__module__}.{type(model).__qualname__} is not a transformers model",
            hint="pass a model of transformers.AutoModelForCausalLM",
        )
    family = getattr(config, "model_type", type(model).__name__)
    text = text_config(config)
    kinds = {str(kind) for kind in (getattr(text, "layer_types", None) or ())}
    reason = ""
    if getattr(config, "is_encoder_decoder", False):
        reason = "it is an encoder with a decoder; only decoders are supported"
    elif kinds & _STATES or (getattr(model, "_is_stateful", False) and not (kinds and kinds <= _ATTENTION)):
        reason = "it keeps a recurrent state, which cannot be rolled back to the accepted tokens"
    elif hasattr(model, "get_output_embeddings") and model.get_output_embeddings() is None:
        reason = "it has no lm_head"
    if reason:
        raise UnsupportedModelError(f"{family} cannot run here: {reason}", hint="use transformers' own generate")


def sliding_window(config: Any) -> int | None:
    """Return the model's smallest attention window; None if all layers see all positions."""
    text = text_config(config)
    kinds = getattr(text, "layer_types", None) or getattr(text, "attention_layers", None)
    found = []
    if getattr(text, "use_sliding_window", True) is not False:
        found.append(getattr(text, "sliding_window", None))
    found.append(getattr(text, "attention_chunk_size", None))
    if kinds and "local" in kinds:  # GPT-Neo
        found.append(getattr(text, "window_size", None))
    windows = [size for size in found if isinstance(size, int) and size > 0]
    if kinds and not {"sliding_attention", "chunked_attention", "local"} & set(kinds):
        return None
    return min(windows, default=None)


class Run(Protocol):
    """The model's forward on one sequence, as an engine runs it."""

    def __call__(
        self,
        cache: SequenceCache,
        past: Any,
        ids: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor | None,
        want: list[int],
    ) -> torch.Tensor | None:
        """Map ids and positions [1, rows] to logits [wanted, vocab_size], or None without wanted rows."""
        ...


@dataclass(frozen=True, slots=True)
class Trial:
    """A model to test, and the engine's way to run it.

    Attributes:
        model: of transformers.
        device: the device of its inputs.
        dtype: the dtype that it computes in.
        max_context: most positions of a sequence.
        takes_positions: whether its forward takes ``position_ids``.
        new_cache: makes an empty sequence.
        run: see :class:`Run`.
    """

    model: Any
    device: torch.device
    dtype: torch.dtype
    max_context: int
    takes_positions: bool
    new_cache: Callable[[], SequenceCache]
    run: Run


@dataclass(frozen=True, slots=True)
class Fitness:
    """The results of the tests.

    Attributes:
        vocab_size: number of logits.
        position_bytes: bytes of a position in the cache.
        masks: the one of ``CONVENTIONS`` that the model honors; "none": trees are not possible.
        why_chains: the reason why trees are not possible.
    """

    vocab_size: int
    position_bytes: int
    masks: str = "none"
    why_chains: str = ""


def fitness_of(trial: Trial) -> Fitness:
    """Run the model on a few tokens.

    Raises:
        UnsupportedModelError: steps on the cache do not give the logits of reading the whole text.
    """
    rows = PREFIX + len(TREE)
    known = trial.model.get_input_embeddings().weight.shape[0]
    ids = torch.tensor([[(7919 * i + 13) % known for i in range(rows)]], device=trial.device)
    prefix, tree = ids[:, :PREFIX], ids[:, PREFIX:]
    fitness = _check_cache(trial, prefix)

    expected = []
    for row in range(len(TREE)):
        path = [row]
        while TREE[path[0]] >= 0:
            path.insert(0, TREE[path[0]])
        expected.append(_rows(trial, [(prefix, None, None), (tree[:, path], None, None)])[-1])
    right = torch.stack(expected)
    wrong = _rows(trial, [(prefix, None, None), (tree, None, None)])
    scale = float((right - wrong).abs().max())
    if not trial.takes_positions:
        return replace(fitness, why_chains="the model's forward takes no position_ids")
    window = sliding_window(trial.model.config)
    if window is not None and window < trial.max_context:
        return replace(fitness, why_chains=f"the model's attention slides over {window} positions")
    reason = "the model's logits do not follow a mask of four dimensions"
    for convention in CONVENTIONS:
        try:
            mask = spelled(seen_by(PREFIX, TREE), convention, trial.dtype, trial.device)
            got = _rows(trial, [(prefix, None, None), (tree, depths_of(TREE), mask)])
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError, NotImplementedError) as error:
            reason = f"with a mask of four dimensions it raises: {(str(error).splitlines() or [''])[0]}"
            continue
        if bool(torch.isfinite(got).all()) and float((got - right).abs().max()) < SAME * scale:
            return replace(fitness, masks=convention)
    return replace(fitness, why_chains=reason)


def _check_cache(trial: Trial, prefix: torch.Tensor) -> Fitness:
    """Run the tests without masks.

    Raises:
        UnsupportedModelError: steps on the cache do not give the logits of reading the whole text.
    """
    family = getattr(trial.model.config, "model_type", type(trial.model).__name__)
    half = PREFIX // 2
    try:
        cache = trial.new_cache()
        whole = _rows(trial, [(prefix, None, None)], cache)
        steps = _rows(trial, [(prefix[:, :half], None, None), (prefix[:, half:-1], None, None)])
        steps = torch.cat([steps, _rows(trial, [(prefix[:, :-1], None, None), (prefix[:, -1:], None, None)])])
        alone = _rows(trial, [(prefix[:, half:], None, None)])
    except UnsupportedModelError:
        raise
    except Exception as error:  # code of a family that does not take the cache may raise anything
        raise UnsupportedModelError(
            f"{family} cannot run here: its forward does not work on a cache of keys and values ({first_line(error)})",
            hint="use transformers' own generate",
        ) from error
    if not float((steps - whole[half:]).abs().max()) < SAME * float((alone - whole[half:]).abs().max()):
        raise UnsupportedModelError(
            f"{family} cannot run here: a step on its cache does not give what reading the whole text gives",
            hint="use transformers' own generate",
        )
    return Fitness(int(whole.shape[-1]), cache.bytes_per_position())


Part = tuple[torch.Tensor, list[int] | None, torch.Tensor | None]
"""ids [1, rows], depths (None = a chain's) and mask (None = a chain's) of one forward."""


def _rows(trial: Trial, parts: list[Part], cache: SequenceCache | None = None) -> torch.Tensor:
    """Return logits, float32 [rows, vocab_size], of the last part, after the others were read into the cache."""
    cache = cache or trial.new_cache()
    logits: torch.Tensor | None = None
    for ids, depths, mask in parts:
        count = ids.shape[1]
        chain = list(range(-1, count - 1))
        past = cache.begin(chain if mask is None else list(TREE))
        positions = torch.tensor([depths or list(range(count))], device=trial.device) + cache.length
        logits = trial.run(cache, past, ids, positions, mask, list(range(count)))
        if mask is None:
            cache.keep(list(range(count)))
    assert logits is not None
    return logits.float().cpu()
