"""What a model is asked, of texts that are given: paragraph after paragraph, as a user's words or to be continued."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from ipex_lookahead.errors import InputError
from ipex_lookahead.generation.text_model import TextModel
from ipex_lookahead.tokenization.prompts import build_prompt


def pieces(text: str) -> list[str]:
    """A text's paragraphs, which empty lines part."""
    return [piece for found in re.split(r"\n\s*\n", text) if (piece := found.strip())]


def prompts_of(model: TextModel, texts: Sequence[str], most: int, seed: int) -> list[list[int]]:
    """The prompts of all pieces, in an order that ``seed`` draws.

    Args:
        model: with a chat template each piece is a user's message; without, the beginning of a text to go on with.
        texts: of which pieces are made.
        most: tokens of a piece; what is behind them is left out.
        seed: of the order.

    Raises InputError where the texts hold no word.
    """
    tokenizer = model.tokenizer
    found = [piece for text in texts for piece in pieces(text)]
    if not found:
        raise InputError("the texts hold no word", hint="give texts of the kind that the model is for, of some pages")
    made = []
    for number in np.random.default_rng(seed).permutation(len(found)):
        ids = tokenizer.encode(found[number], add_special_tokens=not tokenizer.chat_template)[:most]
        made.append(
            build_prompt(tokenizer, model.config, tokenizer.decode(ids)) if tokenizer.chat_template else list(ids)
        )
    return made
