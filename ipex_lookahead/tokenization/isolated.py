"""Tokenizers with any parts of the ``tokenizers`` library, in another process.

A regular expression in a file may not terminate, the table of a normalizer may be invalid, and a failed allocation ends
the process. Therefore such a pipeline runs in a worker (``process.py``) with limits of the kernel. If the worker dies,
the call is an error, and the next call starts another worker. The worker ends with its parent; a fork starts its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer, models

from ipex_lookahead.errors import ModelFormatError
from ipex_lookahead.files.safe_json import File
from ipex_lookahead.tokenization.content import Encode, respelled
from ipex_lookahead.tokenization.growth import MOST_ADDED, MOST_GROWTH, most_ids
from ipex_lookahead.tokenization.layout import Layout
from ipex_lookahead.tokenization.process import KeptWorker, Stopped, Worker, importable, spoken_memory
from ipex_lookahead.tokenization.saving import FAST, ends_of, write_settings
from ipex_lookahead.tokenization.text import TextTokenizer
from ipex_lookahead.tokenization.tokenizer_json import Pipeline

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SECONDS = 2.0
SECONDS_PER_BYTE = 20e-6
"""Further processor time per byte of a text or ids: fifty times that of a real tokenizer."""
SECONDS_TO_LOAD = 10.0
LOAD_SECONDS_PER_BYTE = 1e-6
MEMORY = 1 << 30
MEMORY_PER_BYTE = 48
"""Further address space of the worker per byte of the description."""


class TokenizerProcess(KeptWorker):
    """The worker of one tokenizer.

    Args:
        description: JSON of the tokenizer.
        file: Name of the file, for messages.
    """

    def __init__(self, description: str, file: File) -> None:
        """Start the worker. Raises ModelFormatError for an invalid description, InputError if no process can start."""
        super().__init__()
        self._description, self._file = description, file
        self._memory = MEMORY + MEMORY_PER_BYTE * len(description)
        with self._lock:
            self._running()

    def request(self, question: dict[str, Any], size: int, doing: str) -> Any:
        """Return the answer of ``worker.Tokenizer.answer``.

        Args:
            question: The request, without its time limit.
            size: Size of the text or ids in bytes.
            doing: "encoding" or "decoding", for messages.

        Raises:
            ModelFormatError: The library fails or exceeds a limit, or no process can be started.
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
    """A tokenizer that runs in a worker.

    Args:
        pipeline: The checked tokenizer.
        options: See :class:`TextTokenizer`. Without flags for bos and eos, the post-processor of the pipeline is kept.
    """

    def __init__(self, pipeline: Pipeline, options: Mapping[str, Any]) -> None:
        """Start the worker. Raises ModelFormatError if the library rejects the pipeline."""
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
        self._post_processor = description["post_processor"]
        self._longest = max(map(len, self._vocab))
        self._file = pipeline.file
        self._process = TokenizerProcess(self._description, pipeline.file)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return _encoded(self._process, text, add_special_tokens)

    @property
    def added_tokens(self) -> Mapping[str, bool]:
        return self._added

    def _respelled(self, spellings: Mapping[str, str]) -> Encode:
        description = json.dumps(respelled(json.loads(self._description), spellings), ensure_ascii=False)
        process = TokenizerProcess(description, self._file)
        return lambda text, special: _encoded(process, text, special)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        ids = [int(i) for i in token_ids]
        most = MOST_ADDED + MOST_GROWTH * self._longest * len(ids)
        question = {"ids": ids, "skip": skip_special_tokens, "most": most}
        return str(self._process.request(question, 8 * len(ids), "decoding"))

    @cached_property
    def layout(self) -> Layout:
        empty = {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}}
        return Layout.of(
            Tokenizer.from_str(json.dumps(empty | {"post_processor": self._post_processor})).post_processor
        )

    def get_vocab(self) -> dict[str, int]:
        return dict(self._vocab)

    def _token_id(self, token: str) -> int | None:
        return self._vocab.get(token)

    @property
    def silent_ids(self) -> frozenset[int]:
        return self._silent

    def for_transformers(self) -> PreTrainedTokenizerBase:
        """Return a transformers tokenizer that runs each text in the worker first, then in this process.

        So all functions of transformers work, within the limits of the worker.
        """
        from ipex_lookahead.tokenization.tokenizers import RehearsedTokenizer

        return RehearsedTokenizer.of(self, self._description, self._options)

    def save_pretrained(self, folder: str) -> None:
        (Path(folder) / "tokenizer.json").write_text(self._description, encoding="utf-8")
        write_settings(folder, FAST, self._options)


def _encoded(process: TokenizerProcess, text: str, add_special_tokens: bool) -> list[int]:
    question = {"text": text, "special": add_special_tokens, "most": most_ids(text)}
    ids: list[int] = process.request(question, len(text.encode("utf-8")), "encoding")
    return ids
