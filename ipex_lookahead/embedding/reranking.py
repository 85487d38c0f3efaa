"""Rerankers made of text models: a prompt with query and document, and the logits of "yes" and "no" after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ipex_lookahead.embedding.inputs import TextInput, too_long
from ipex_lookahead.embedding.settings import QWEN_TASK
from ipex_lookahead.errors import InputError, UnsupportedModelError
from ipex_lookahead.tokenization.text import TextTokenizer

QWEN_TEMPLATE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct"
    ' provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
"""Prompt of Qwen3-Reranker, from its model card."""
_PLACES = ("{instruction}", "{query}", "{document}")


@dataclass(frozen=True, slots=True)
class RankTemplate:
    """The prompt of a reranker. Control tokens in a query, a document or an instruction are text.

    Attributes:
        before: ids up to the last control token before the query.
        body: the text between, with ``{query}``, ``{document}`` and perhaps ``{instruction}``.
        after: ids after the body.
        instruction: the instruction where none is given; "": the template has no place for one.
    """

    before: tuple[int, ...]
    body: str
    after: tuple[int, ...]
    instruction: str

    @classmethod
    def of(cls, template: str, tokenizer: TextTokenizer) -> RankTemplate:
        """Return a checked template. Raises UnsupportedModelError for one without places for query and document."""
        if template.count("{query}") != 1 or template.count("{document}") != 1:
            raise UnsupportedModelError(
                "the model's template for reranking needs {query} and {document}, once each; it is " + template[:80]
            )
        if "{instruction}" not in template:
            template = template.replace(QWEN_TASK, "{instruction}", 1)
        places = [template.find(place) for place in _PLACES if place in template]
        first, last = min(places), max(place + template[place:].index("}") + 1 for place in places)
        control = [token for token in tokenizer.added_tokens if token in template]
        starts = [template.rfind(token, 0, first) + len(token) for token in control if token in template[:first]]
        ends = [template.find(token, last) for token in control if token in template[last:]]
        start, end = max(starts, default=0), min(ends, default=len(template))
        encode = tokenizer.encode
        return cls(
            tuple(encode(template[:start], add_special_tokens=False)) if start else (),
            template[start:end],
            tuple(encode(template[end:], add_special_tokens=False)) if end < len(template) else (),
            QWEN_TASK if "{instruction}" in template else "",
        )

    def input(
        self,
        tokenizer: TextTokenizer,
        query: str,
        document: str,
        instruction: str | None,
        limit: int,
        *,
        truncate: bool,
    ) -> TextInput:
        """Return the prompt's tokens; a body that is too long loses its end. Raises InputError."""
        if instruction is not None and not self.instruction:
            raise InputError("this model's template has no place for an instruction; leave it out")
        for name, text in (("query", query), ("document", document), ("instruction", instruction or "")):
            if not isinstance(text, str):
                raise InputError(f"the {name} is of type {type(text).__name__}; it must be a string")
        values = {"query": query, "document": document, "instruction": instruction or self.instruction}
        body = tokenizer.encode_text(_filled(self.body, values))
        room = limit - len(self.before) - len(self.after)
        if len(body) > room and not truncate:
            raise too_long(len(self.before) + len(body) + len(self.after), limit)
        return TextInput(np.array([*self.before, *body[: max(room, 0)], *self.after], np.int64))


def _filled(body: str, values: Mapping[str, str]) -> str:
    """Return the body with its places filled; a value that spells a place is text."""
    parts: list[str] = []
    while body:
        found = [(at, name) for name in values if (at := body.find("{" + name + "}")) >= 0]
        if not found:
            break
        at, name = min(found)
        parts += [body[:at], values[name]]
        body = body[at + len(name) + 2 :]
    return "".join([*parts, body])


def answer_ids(tokenizer: Any) -> tuple[int, int]:
    """Return the ids of "yes" and "no". Raises UnsupportedModelError if they are not single tokens."""
    found: list[Sequence[int]] = [tokenizer.encode(word, add_special_tokens=False) for word in ("yes", "no")]
    if any(len(ids) != 1 for ids in found):
        raise UnsupportedModelError('"yes" and "no" are not single tokens of this model: it is not a known reranker')
    return found[0][0], found[1][0]
