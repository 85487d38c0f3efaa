"""A tokenizer of any parts that the ``tokenizers`` library has, in a process that may die without taking ours along.

A regular expression from a file can take for ever, a normaliser's table can lead astray, and a failed allocation ends
the process in which the library runs. So a pipeline with such parts runs in a worker (``process.py``) that the kernel
limits, started when the tokenizer is made and kept. When it dies, that text or those ids are an error, and the next
call starts another. It ends with its parent; a fork starts its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer, models

from ipex_lookahead.errors import ModelFormatError
from ipex_lookahead.files.safe_json import File
from ipex_lookahead.tokenization.content import Encode, respelled
from ipex_lookahead.tokenization.growth import MOST_ADDED, MOST_GROWTH, most_ids
from ipex_lookahead.tokenization.process import KeptWorker, Stopped, Worker, importable, spoken_memory
from ipex_lookahead.tokenization.saving import FAST, ends_of, write_settings
from ipex_lookahead.tokenization.text import TextTokenizer
from ipex_lookahead.tokenization.tokenizer_json import Pipeline

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SECONDS = 2.0
SECONDS_PER_BYTE = 20e-6
"""Processor time for a text or ids, beside the above: fifty times what a real tokenizer takes."""
SECONDS_TO_LOAD = 10.0
LOAD_SECONDS_PER_BYTE = 1e-6
MEMORY = 1 << 30
MEMORY_PER_BYTE = 48
"""Address space of the worker for each byte of the description, beside the above."""


class TokenizerProcess(KeptWorker):
    """The worker of one tokenizer.

    Args:
        description: what the library makes the tokenizer of.
        file: its name, for messages.
    """

    def __init__(self, description: str, file: File) -> None:
        """Raises ModelFormatError where the library does not take it, InputError where no process can be started."""
        super().__init__()
        self._description, self._file = description, file
        self._memory = MEMORY + MEMORY_PER_BYTE * len(description)
        with self._lock:
            self._running()

    def request(self, question: dict[str, Any], size: int, doing: str) -> Any:
        """The answer to a question of ``worker.Tokenizer.answer``.

        Args:
            question: without its time.
            size: bytes of what it is about.
            doing: "encoding" or "decoding", for messages.

        Raises:
            ModelFormatError: the library fails, or takes more than it may, or no process can be started.
        """
        seconds = SECONDS + SECONDS_PER_BYTE * size
        message = json.dumps(question | {"seconds": seconds}, ensure_ascii=False).encode("utf-8")
        with self._lock:
            answer = self._answer(self._running(), message, seconds, doing)
        if "ok" not in answer:
            raise ModelFormatError(self._file, doing, None, answer["error"])
        return answer["ok"]

    def _running(self) -> Worker:
        if self._worker is None:
            worker = Worker(f"the tokenizer of {self._file}", instead="pass token ids instead of text")
            seconds = SECONDS_TO_LOAD + LOAD_SECONDS_PER_BYTE * len(self._description)
            limits = {"seconds": seconds, "memory": self._memory}
            request = {"path": importable(), "description": self._description, "limits": limits}
            message = json.dumps(request, ensure_ascii=False).encode("utf-8")
            self._worker = worker
            answer = self._answer(worker, message, seconds, "file")
            if "ok" not in answer:
                self._worker = None
                worker.close()
                problem = f"the tokenizers library does not take it: {answer['error']}"
                raise ModelFormatError(self._file, "file", None, problem)
        return self._worker

    def _answer(self, worker: Worker, message: bytes, seconds: float, doing: str) -> dict[str, Any]:
        limits = f"{seconds:.3g} s of processor time or {spoken_memory(self._memory)}"
        try:
            return self._request(worker, message, seconds, limits)
        except Stopped as stopped:
            raise ModelFormatError(self._file, doing, None, f"its process {stopped}") from None

    def __reduce__(self) -> Any:
        return TokenizerProcess, (self._description, self._file)


class IsolatedText(TextTokenizer):
    """A tokenizer whose text goes through a worker.

    Args:
        pipeline: what it is made of.
        options: see :class:`TextTokenizer`. Where it says nothing of bos and eos, the pipeline's own way of adding them
            is kept.
    """

    def __init__(self, pipeline: Pipeline, options: Mapping[str, Any]) -> None:
        """Raises ModelFormatError where the library does not take the pipeline."""
        super().__init__(options)
        added: list[dict[str, Any]] = list(pipeline.description["added_tokens"])
        known = {token["content"] for token in added}
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for token in dict.fromkeys((*self._roles.values(), *self._additional)):
            if token not in known:
                added.append({"id": pipeline.vocab[token], "content": token, **flags, "special": True})
        self._vocab = pipeline.vocab | {token["content"]: token["id"] for token in added}
        self._added = {token["content"]: bool(token["special"]) for token in added}
        self._silent = frozenset(token["id"] for token in added if token["special"])
        description = pipeline.description | {"added_tokens": sorted(added, key=lambda token: token["id"])}
        if "add_bos_token" in options or "add_eos_token" in options:
            some = Tokenizer(models.BPE())
            some.post_processor = ends_of(options, self._vocab.__getitem__)
            description["post_processor"] = json.loads(some.to_str())["post_processor"]
        self._description = json.dumps(description, ensure_ascii=False)
        self._longest = max(map(len, self._vocab))
        self._file = pipeline.file
        self._process = TokenizerProcess(self._description, pipeline.file)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """See :class:`TextTokenizer`."""
        return _encoded(self._process, text, add_special_tokens)

    @property
    def added_tokens(self) -> Mapping[str, bool]:
        """See :class:`TextTokenizer`."""
        return self._added

    def _respelled(self, spellings: Mapping[str, str]) -> Encode:
        description = json.dumps(respelled(json.loads(self._description), spellings), ensure_ascii=False)
        process = TokenizerProcess(description, self._file)
        return lambda text, special: _encoded(process, text, special)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """See :class:`TextTokenizer`."""
        ids = [int(i) for i in token_ids]
        most = MOST_ADDED + MOST_GROWTH * self._longest * len(ids)
        question = {"ids": ids, "skip": skip_special_tokens, "most": most}
        return str(self._process.request(question, 8 * len(ids), "decoding"))

    def get_vocab(self) -> dict[str, int]:
        """See :class:`TextTokenizer`."""
        return dict(self._vocab)

    def _token_id(self, token: str) -> int | None:
        return self._vocab.get(token)

    @property
    def silent_ids(self) -> frozenset[int]:
        """See :class:`TextTokenizer`."""
        return self._silent

    def for_transformers(self) -> PreTrainedTokenizerBase:
        """See :class:`TextTokenizer`.

        What it is given goes through the worker first, and then through the library in this process: all that
        transformers offers works, and takes no more than the worker was allowed to take.
        """
        from ipex_lookahead.tokenization.tokenizers import RehearsedTokenizer

        return RehearsedTokenizer.of(self, self._description, self._options)

    def save_pretrained(self, folder: str) -> None:
        """See :class:`TextTokenizer`."""
        (Path(folder) / "tokenizer.json").write_text(self._description, encoding="utf-8")
        write_settings(folder, FAST, self._options)


def _encoded(process: TokenizerProcess, text: str, add_special_tokens: bool) -> list[int]:
    question = {"text": text, "special": add_special_tokens, "most": most_ids(text)}
    ids: list[int] = process.request(question, len(text.encode("utf-8")), "encoding")
    return ids
