"""What a transformers model can do, found out by running it on a few tokens when it is loaded, never assumed.

Two questions. Does a step on the cache give what reading everything at once gives? And does the model honour a mask of
four dimensions with explicit positions, which trees need? Each is answered by logits, compared with those of a model
that got it wrong in the way it would: without the cache, without the mask. So no tolerance depends on dtype or size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ipex_lookahead.errors import UnsupportedModelError

if TYPE_CHECKING:
    from ipex_lookahead.engines.torch.engine import TorchEngine

PREFIX = 6
TREE = (-1, 0, 0, 1, 2, 2)
"""Parents of the tree that is tried."""
CONVENTIONS = ("additive", "ones")
"""Spellings of a mask: 0 and a very negative number, or 1 and 0 (transformers before 4.40)."""
SAME = 0.25
"""Two logits are the same where they differ by less than this share of what the mistake would make of them."""

_STATES = {"linear_attention", "conv", "mamba", "hybrid", "recurrent", "recurrent_attention", "hybrid_sliding"}


def refuse_unfit(model: Any) -> None:
    """Raise UnsupportedModelError for models whose past cannot be rolled back, by what they say of themselves."""
    config = getattr(model, "config", None)
    if config is None or not hasattr(model, "forward"):
        raise UnsupportedModelError(
            f"a {type(model).__module__}.{type(model).__qualname__} is no transformers model",
            hint="pass a model of transformers.AutoModelForCausalLM",
        )
    family = getattr(config, "model_type", type(model).__name__)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    kinds = {str(kind) for kind in (getattr(text, "layer_types", None) or ())}
    reason = ""
    if getattr(config, "is_encoder_decoder", False):
        reason = "it is an encoder with a decoder; only decoders are supported"
    elif getattr(model, "_is_stateful", False) or kinds & _STATES:
        reason = "it keeps a recurrent state, which cannot be rolled back to the accepted tokens"
    elif hasattr(model, "get_output_embeddings") and model.get_output_embeddings() is None:
        reason = "it has no lm_head"
    if reason:
        raise UnsupportedModelError(f"{family} cannot run here: {reason}", hint="use transformers' own generate")


def sliding_window(config: Any) -> int | None:
    """Positions that the model's narrowest attention looks back, None where all layers see everything."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
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


def masks_of(engine: TorchEngine) -> tuple[int, str, str]:
    """Run the model on a few tokens.

    Returns:
        The number of its logits, the spelling of masks that it honours ("none" where trees cannot be had), and why not.

    Raises:
        UnsupportedModelError: a step on the cache does not give what reading everything at once gives.
    """
    rows = PREFIX + len(TREE)
    known = engine.model.get_input_embeddings().weight.shape[0]
    ids = torch.tensor([[(7919 * i + 13) % known for i in range(rows)]], device=engine.device)
    prefix, tree = ids[:, :PREFIX], ids[:, PREFIX:]
    vocab = _check_cache(engine, prefix)

    expected = []
    for row in range(len(TREE)):
        path = [row]
        while TREE[path[0]] >= 0:
            path.insert(0, TREE[path[0]])
        expected.append(_rows(engine, [(prefix, None, None), (tree[:, path], None, None)])[-1])
    right = torch.stack(expected)
    wrong = _rows(engine, [(prefix, None, None), (tree, None, None)])
    scale = float((right - wrong).abs().max())
    if not engine._takes_positions:
        return vocab, "none", "the model's forward takes no position_ids"
    window = sliding_window(engine.model.config)
    if window is not None and window < engine.max_context:
        return vocab, "none", f"the model's attention slides over {window} positions"
    reason = "the model's logits do not follow a mask of four dimensions"
    for convention in CONVENTIONS:
        engine._masks = convention
        try:
            got = _rows(engine, [(prefix, None, None), (tree, _depths(), engine._tree_mask(PREFIX, TREE))])
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError, NotImplementedError) as error:
            reason = f"with a mask of four dimensions it says: {(str(error).splitlines() or [''])[0]}"
            continue
        if bool(torch.isfinite(got).all()) and float((got - right).abs().max()) < SAME * scale:
            return vocab, convention, ""
    return vocab, "none", reason


def _check_cache(engine: TorchEngine, prefix: torch.Tensor) -> int:
    """How many logits there are. UnsupportedModelError unless steps on the cache give those of reading all at once."""
    family = getattr(engine.model.config, "model_type", type(engine.model).__name__)
    half = PREFIX // 2
    try:
        whole = _rows(engine, [(prefix, None, None)])
        steps = _rows(engine, [(prefix[:, :half], None, None), (prefix[:, half:-1], None, None)])
        steps = torch.cat([steps, _rows(engine, [(prefix[:, :-1], None, None), (prefix[:, -1:], None, None)])])
        alone = _rows(engine, [(prefix[:, half:], None, None)])
    except UnsupportedModelError:
        raise
    except Exception as error:  # whatever code of any family makes of a cache that it does not take
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UnsupportedModelError(
            f"{family} cannot run here: its forward does not work on a cache of keys and values ({said})",
            hint="use transformers' own generate",
        ) from error
    if not float((steps - whole[half:]).abs().max()) < SAME * float((alone - whole[half:]).abs().max()):
        raise UnsupportedModelError(
            f"{family} cannot run here: a step on its cache does not give what reading the whole text gives",
            hint="use transformers' own generate",
        )
    return int(whole.shape[-1])


def _depths() -> list[int]:
    depths: list[int] = []
    for parent in TREE:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    return depths


def _rows(engine: TorchEngine, parts: list[tuple[torch.Tensor, list[int] | None, torch.Tensor | None]]) -> torch.Tensor:
    """Logits float32 [rows, vocab_size] of the last part; the others are read before it. Parts: ids, depths, mask."""
    cache = engine.new_cache()
    logits: torch.Tensor | None = None
    for ids, depths, mask in parts:
        count = ids.shape[1]
        chain = list(range(-1, count - 1))
        past = cache.begin(chain if mask is None else list(TREE))
        positions = torch.tensor([depths or list(range(count))], device=engine.device) + cache.length
        logits = engine._run(cache, past, ids, positions, mask, list(range(count)))
        if mask is None:
            cache.keep(list(range(count)))
    engine._position_bytes = cache.bytes_per_position()
    assert logits is not None
    return logits.float().cpu()
