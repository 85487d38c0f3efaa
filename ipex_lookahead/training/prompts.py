"""What a model is asked, of texts that are given: paragraph after paragraph, as a user's words or to be continued."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from ipex_lookahead.errors import InputError
from ipex_lookahead.generation.text_model import TextModel
from ipex_lookahead.tokenization.prompts import build_prompt


def pieces_of(texts: Sequence[str], seed: int) -> list[str]:
    """The paragraphs of all texts, which empty lines part, in an order that ``seed`` draws.

    Raises InputError where there is none.
    """
    found = [piece for text in texts for one in re.split(r"\n\s*\n", text) if (piece := one.strip())]
    if not found:
        raise InputError("the texts hold no word", hint="give texts of the kind that the model is for, of some pages")
    return [found[number] for number in np.random.default_rng(seed).permutation(len(found))]


def prompts_of(model: TextModel, pieces: Iterable[str], most: int) -> Iterator[list[int]]:
    """The prompt of each piece, token ids, made when it is asked for.

    Args:
        model: with a chat template a piece is a user's message; without, the beginning of a text to go on with.
        pieces: as :func:`pieces_of` gives them.
        most: tokens of a piece; what is behind them is left out.
    """
    tokenizer = model.tokenizer
    chats = bool(tokenizer.chat_template)
    if chats:
        tokenizer.render_often()
    for piece in pieces:
        ids = list(tokenizer.encode(piece, add_special_tokens=not chats)[:most])
        yield build_prompt(tokenizer, model.config, tokenizer.decode(ids)) if chats else ids
