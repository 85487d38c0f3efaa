"""A model whose own generation config asks for what only Hugging Face's processors do, behind a command.

This imports torch and transformers, as :mod:`.text_model` by itself does not; so it is imported for such models only.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import torch
from transformers import GenerationConfig

from ipex_lookahead.decoding.choose import Processor
from ipex_lookahead.engines.base import Engine
from ipex_lookahead.errors import InputError
from ipex_lookahead.generation.generate import generate_stepwise
from ipex_lookahead.generation.options import resolve
from ipex_lookahead.generation.rules import Rules
from ipex_lookahead.generation.run import Tape


def generate_as_transformers(
    engine: Engine,
    ids: Sequence[int],
    rules: Rules,
    defaults: Mapping[str, Any],
    own: Sequence[Processor],
    tokenizer: Any,
    on_token: Callable[[int], None] | None,
    **rest: Any,
) -> Generator[Sequence[Tape], None, None]:
    """Answer a prompt as ``model.generate`` does with this generation config.

    Args:
        engine: where the model runs.
        ids: the prompt.
        rules: how tokens are chosen, resolved; what is None in them the generation config says.
        defaults: the model's generation config.
        own: processors that come after those of the config, as the loop calls them.
        tokenizer: transformers', or None where there are no texts to stop at.
        on_token: told each token as it comes.
        **rest: further arguments of :func:`ipex_lookahead.generation.generate.generate_stepwise`.

    Yields:
        The answer so far: nothing, once the arguments are checked, then a tape after each forward.

    Raises:
        InputError: an option of the config is not supported.
    """
    config = GenerationConfig(**defaults)
    try:
        resolve(config, None, {})
    except InputError as error:
        raise InputError(
            f"the model's generation config: {error}", hint="change it in generation_config.json, or take it out there"
        ) from error
    sampled = bool(rules.temperature)
    asked = {name: getattr(rules, name) for name in ("top_k", "top_p", "min_p")} if sampled else {}
    asked |= {"temperature": rules.temperature if sampled else None, "repetition_penalty": rules.repetition_penalty}
    yield from generate_stepwise(
        engine,
        torch.tensor([list(ids)]),
        model_defaults=config,
        do_sample=sampled,
        max_new_tokens=rules.max_new_tokens,
        stop_strings=list(rules.stop) or None,
        tokenizer=tokenizer,
        logits_processor=[_on_tensors(processor) for processor in own],
        streamer=None if on_token is None else _Streamer(on_token),
        seed=rules.seed,
        return_dict_in_generate=False,
        num_return_sequences=1,
        **{name: value for name, value in asked.items() if value is not None},
        **rest,
    )


def _on_tensors(processor: Processor) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """One of the loop's processors as transformers calls them, for a batch of one."""

    def called(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(processor(ids[0].numpy(), scores[0].numpy().copy()))[None]

    return called


class _Streamer:
    """Tells tokens one by one; what comes first is the prompt."""

    def __init__(self, tell: Callable[[int], None]) -> None:
        self._tell = tell
        self._prompt_seen = False

    def put(self, ids: torch.Tensor) -> None:
        """Take the prompt, int64 [1, n], or the next token, int64 [1]."""
        if self._prompt_seen:
            self._tell(int(ids.item()))
        self._prompt_seen = True

    def end(self) -> None:
        """Nothing is held back."""
