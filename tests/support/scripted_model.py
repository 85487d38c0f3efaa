"""A model that answers with written texts, on the embedded model's tokenizer: everything above its engine is real.

A script maps the turns of a prompt to the text of the answer. The next token is a function of the tokens alone, so
drafts, the prefix cache, preemption and grammars work as with a real model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.checkpoints import open_checkpoint
from ipex_lookahead.engines.loading import LoadedModel
from ipex_lookahead.errors import EngineError
from ipex_lookahead.hub import resolve_model
from ipex_lookahead.runtime.text_model import TextModel
from ipex_lookahead.tokenization.text import TextTokenizer
from tests.support.scripted_engine import ScriptedEngine

TEMPLATE = """
{%- if messages[0].role == 'system' or tools %}
    {{- '<|im_start|>system\\n' + (messages[0].content if messages[0].role == 'system' else '') }}
    {%- if tools %}
        {{- '\\n<tools>' }}
        {%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
        {{- '\\n</tools>\\nCall with <tool_call>\\n{"name": ..., "arguments": ...}\\n</tool_call>' }}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for turn in messages %}
    {%- if not loop.first or turn.role != 'system' %}
        {{- '<|im_start|>' + turn.role + '\\n' }}
        {%- if turn.reasoning_content %}{{- '<think>\\n' + turn.reasoning_content | trim + '\\n</think>\\n\\n' }}{%- endif %}
        {{- turn.content or '' }}
        {%- for call in turn.tool_calls or [] %}
            {{- '\\n' if not loop.first or turn.content }}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""  # noqa: E501
"""Qwen 3's way with calls and thoughts. A thought stays in the conversation, and results have a role of their own."""

CERTAIN = 1e4
"""The logit of the next token; all others are 0."""


SLACK = 64
"""Number of tokens by which an answer may be longer than the script's."""


@dataclass(frozen=True)
class Turn:
    """A message in a prompt."""

    role: str
    text: str


@dataclass(frozen=True)
class Calling:
    """An answer that calls a tool, with a text before the call.

    Its arguments are written in the order of the tool's schema, as a model under the grammar of calls writes them.
    """

    name: str
    arguments: dict[str, Any]
    text: str = ""

    def spelled(self, tools: Sequence[dict[str, Any]]) -> str:
        """The answer's text."""
        schemas = [tool.get("parameters") or {} for tool in tools if tool["name"] == self.name]
        order = [*(schemas[0].get("properties") or {} if schemas else {})]
        arguments = {key: self.arguments[key] for key in order if key in self.arguments} | self.arguments
        call = json.dumps({"name": self.name, "arguments": arguments}, ensure_ascii=False)
        return (self.text and self.text + "\n") + f"<tool_call>\n{call}\n</tool_call>"


@dataclass(frozen=True)
class Prompt:
    """The turns of a prompt, the last of which the answer follows, and its tokens."""

    turns: tuple[Turn, ...]
    tokens: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """All turns, for messages of tests."""
        return "\n".join(f"{turn.role}: {turn.text}" for turn in self.turns)

    @cached_property
    def tools(self) -> list[dict[str, Any]]:
        """The functions that the system message lists."""
        text = self.turns[0].text if self.turns else ""
        lines = text.rpartition("\n<tools>\n")[2].partition("\n</tools>")[0] if "\n<tools>\n" in text else ""
        return [json.loads(line)["function"] for line in lines.splitlines()]


Answer = str | Calling | list[Calling] | Exception
"""A text, one call or several, or an exception, which the forward of the answer's first token raises."""
Script = Callable[[Prompt], Answer]


@dataclass
class ScriptedModel:
    """See the module.

    Attributes:
        script: what is answered. It must be a function of the prompt.
        played: each prompt that was answered, with its answer, in the order of the first tokens.
        context: most positions of a sequence.
    """

    script: Script
    context: int = 1 << 17
    played: list[tuple[Prompt, Answer]] = field(default_factory=list)

    def __post_init__(self) -> None:
        checkpoint = open_checkpoint(resolve_model("default", progress=False))
        tokenizer = checkpoint.text_tokenizer()
        checkpoint.close()
        assert tokenizer is not None
        self.tokenizer: TextTokenizer = tokenizer
        self.tokenizer.chat_template = TEMPLATE
        vocabulary = self.tokenizer.get_vocab()
        self._start: int = vocabulary["<|im_start|>"]
        self._end: int = vocabulary["<|im_end|>"]
        self._size = len(vocabulary)
        self._head = self._encoded("assistant\n")
        self._answers: dict[tuple[int, ...], list[int] | Exception] = {}

    def load(self) -> TextModel:
        """Return a model for the server."""
        engine = ScriptedEngine(self._logits, self._size, self.context)
        defaults = {"eos_token_id": self._end}
        return TextModel(LoadedModel(engine, "fp32", generation_config=defaults), self.tokenizer)

    def _encoded(self, text: str) -> list[int]:
        return self.tokenizer.encode_text(text)

    def _logits(self, tokens: list[int]) -> npt.NDArray[np.float32]:
        row = np.zeros(self._size, np.float32)
        row[self._next(tokens)] = CERTAIN
        return row

    def _next(self, tokens: list[int]) -> int:
        if self._start not in tokens:
            return self._end  # measurements of the engine's costs
        begin = len(tokens) - tokens[::-1].index(self._start) + len(self._head)
        if tokens[begin - len(self._head) : begin] != self._head:
            return self._end
        answer: list[int] = self._answer(tuple(tokens[:begin]))
        said = tokens[begin:]
        if said == answer[: len(said)]:
            return answer[len(said)] if len(said) < len(answer) else self._end
        if len(said) > len(answer) + SLACK:
            raise EngineError(f"the script's answer was not allowed: {self.tokenizer.decode(said)!r}")
        # A grammar may have forced tokens that divide the same text in another way.
        text, whole = self.tokenizer.decode(said), self.tokenizer.decode(answer)
        rest = self._encoded(whole.removeprefix(text)) if whole.startswith(text) else []
        return rest[0] if rest else self._end

    def _answer(self, tokens: tuple[int, ...]) -> list[int]:
        if tokens not in self._answers:
            prompt = Prompt(tuple(self._turns(tokens)), tokens)
            answer = self.script(prompt)
            self.played.append((prompt, answer))
            calls = [answer] if isinstance(answer, Calling) else answer
            text = "\n".join(call.spelled(prompt.tools) for call in calls) if isinstance(calls, list) else calls
            self._answers[tokens] = text if isinstance(text, Exception) else self._encoded(text)
        found = self._answers[tokens]
        if isinstance(found, Exception):
            raise found
        return found

    def _turns(self, tokens: Sequence[int]) -> list[Turn]:
        starts = [i for i, token in enumerate(tokens) if token == self._start]
        found = []
        for start, end in zip(starts, starts[1:], strict=False):  # the last one is the answer's
            text = self.tokenizer.decode(list(tokens[start + 1 : end]))
            role, _, said = text.partition("\n")
            found.append(Turn(role, said.rstrip("\n").removesuffix("<|im_end|>")))
        return found
