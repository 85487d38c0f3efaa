"""A model as conversations need it: its chat template, its special tokens, and the compiler of its grammars."""

from __future__ import annotations

import threading
from functools import cached_property

from ipex_lookahead.conversation.grammar import Compiler, Grammars
from ipex_lookahead.conversation.vocabulary import token_bytes
from ipex_lookahead.runtime.text_model import TextModel


class ChatModel:
    """A loaded model, and what its conversations share, each made on first use. For any number of threads.

    Args:
        model: the loaded model.

    Attributes:
        model, tokenizer: as loaded.
        eos_ids: ids that end an answer.
        vocab_size, max_context: of the engine, in tokens.
    """

    def __init__(self, model: TextModel) -> None:
        self.model = model
        self.tokenizer = model.tokenizer
        self.vocab_size = model.engine.vocab_size
        self.max_context = model.engine.max_context
        self.eos_ids = model.eos_ids
        self._compiler: Compiler | None = None
        self._compiling = threading.Lock()

    @cached_property
    def template(self) -> str:
        """The chat template, or all of them where there are several; "" for none."""
        own = self.tokenizer.chat_template
        return "\n".join(own.values()) if isinstance(own, dict) else own or ""

    @cached_property
    def special_tokens(self) -> dict[str, int]:
        """Ids of the tokens that a decoded text leaves out. Cached, because reading a vocabulary takes milliseconds."""
        silent = self.tokenizer.silent_ids
        return {text: i for text, i in self.tokenizer.get_vocab().items() if i in silent}

    @cached_property
    def tokens(self) -> list[bytes]:
        """Each token's bytes."""
        return token_bytes(self.tokenizer, self.vocab_size)

    @property
    def grammars(self) -> Grammars:
        """Compiles grammars for this model. Raises MissingPackageError if llguidance is not installed."""
        return Grammars(self.compiler)

    @property
    def compiler(self) -> Compiler:
        """The compiler of the grammars, which owns a process. Raises MissingPackageError as ``grammars``."""
        with self._compiling:
            if self._compiler is None:
                self._compiler = Compiler(self.tokenizer, self.tokens, self.eos_ids)
            return self._compiler

    def close(self) -> None:
        """End the compiler's process, if one runs."""
        if self._compiler is not None:
            self._compiler.close()
