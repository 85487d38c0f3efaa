"""Models behind one interface: rows of texts for vectors, and scores. Encoders and causal language models."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ipex_lookahead.checkpoints.encoders import is_encoder
from ipex_lookahead.embedding.causal import CausalRows
from ipex_lookahead.embedding.causal_files import CausalFolder, CausalGguf, open_causal, yes_and_no
from ipex_lookahead.embedding.checkpoint import LoadedEncoder, open_text_encoder
from ipex_lookahead.embedding.dense import Heads
from ipex_lookahead.embedding.inputs import InputMaker, TextInput, groups
from ipex_lookahead.embedding.pooling import pooled
from ipex_lookahead.embedding.reranking import QWEN_TEMPLATE, RankTemplate, answer_ids
from ipex_lookahead.embedding.settings import Settings, folder_settings, gguf_settings
from ipex_lookahead.engines.load_weights import Progress
from ipex_lookahead.engines.loading import LoadRequest, cycles_left_alone
from ipex_lookahead.engines.machine import default_threads
from ipex_lookahead.engines.native.core import chosen_isa
from ipex_lookahead.errors import InputError, ModelFormatError, UnsupportedModelError
from ipex_lookahead.tokenization.folder import text_from_folder
from ipex_lookahead.tokenization.text import TextTokenizer

Floats = npt.NDArray[np.float32]
ENCODER_ROWS = 2048
"""Largest number of rows of several texts that an encoder reads at a time."""

_log = logging.getLogger(__name__)


class Backend(Protocol):
    """A loaded model.

    Attributes:
        settings: what its files state.
        maker: turns texts into tokens.
        width: width of its rows.
        heads: layers after pooling, in order: float32 [n, inputs] -> [n, outputs].
        outputs: width after the last of ``heads``.
        template: prompt of a reranker that is a text model; None: pairs of texts.
        low_bit: name of the weights' format; None: that of the files.
    """

    settings: Settings
    maker: InputMaker
    width: int
    heads: Sequence[Callable[[Floats], Floats]]
    outputs: int
    template: RankTemplate | None
    low_bit: str | None

    def rows(self, inputs: Sequence[TextInput], *, last: bool) -> list[Floats]:
        """Return the rows [n, width] of each text; ``last``: at least the last one, as the last."""
        ...

    def scores(self, inputs: Sequence[TextInput]) -> Floats:
        """Return the relevance of each input of a reranker, a logit, float32 [n]."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return facts for reports."""
        ...


class CausalBackend:
    """A causal language model; see :class:`Backend`."""

    def __init__(
        self,
        model: CausalRows,
        settings: Settings,
        maker: InputMaker,
        heads: Heads,
        template: RankTemplate | None,
        score: Callable[[Sequence[TextInput]], Floats] | None,
    ) -> None:
        self.settings, self.maker, self.template = settings, maker, template
        self.low_bit: str | None = model.low_bit
        self.heads, self.width, self.outputs = heads.layers, model.hidden, heads.outputs
        self._model, self._score = model, score

    def rows(self, inputs: Sequence[TextInput], *, last: bool) -> list[Floats]:
        return self._model.rows(inputs, last=last)

    def scores(self, inputs: Sequence[TextInput]) -> Floats:
        assert self._score is not None  # the model is a reranker
        return self._score(inputs)

    def describe(self) -> dict[str, Any]:
        return self._model.describe()


def open_backend(
    path: Path,
    *,
    reranks: bool,
    low_bit: str | None = None,
    threads: int | None = None,
    max_length: int | None = None,
    progress: Progress | None = None,
) -> Backend:
    """Load a model.

    Args:
        path: the folder or GGUF file.
        reranks: whether scores are wanted, not vectors.
        low_bit: format of the weights; None: that of the files.
        threads: number of threads; None: see ``default_threads``.
        max_length: largest number of tokens of a text; None: the model's.
        progress: see ``engines.load_weights.Progress``.

    Raises as ``EmbeddingModel.open``.
    """
    settings = folder_settings(path) if path.is_dir() else None
    weights = path if settings is None else settings.weights
    request = LoadRequest(weights, low_bit=low_bit, threads=threads, progress=progress)
    with cycles_left_alone():
        if is_encoder(weights):
            return _encoder(path, settings, request, reranks, max_length)
        return _causal(path, settings, request, reranks, max_length)


class EncoderBackend:
    """A text encoder; see :class:`Backend`. Pairs are scored by its classifier."""

    def __init__(
        self, loaded: LoadedEncoder, settings: Settings, maker: InputMaker, heads: Heads, threads: int | None
    ) -> None:
        self.settings, self.maker, self.low_bit = settings, maker, loaded.low_bit
        self.template: RankTemplate | None = None
        self.width, self.heads, self.outputs = loaded.encoder.spec.hidden, heads.layers, heads.outputs
        self._loaded, self._threads = loaded, default_threads() if threads is None else threads

    def rows(self, inputs: Sequence[TextInput], *, last: bool) -> list[Floats]:
        found: list[Floats] = []
        for group in groups(inputs, ENCODER_ROWS):
            found += self._loaded.encoder.rows([one.ids for one in group], [one.types for one in group])
        return found

    def scores(self, inputs: Sequence[TextInput]) -> Floats:
        head = self._loaded.head
        assert head is not None  # the model is a reranker
        rows = self.rows(inputs, last=False)
        logits = head(np.stack([pooled(one, (head.pooling,)) for one in rows]))
        yes, no = yes_and_no((), head.outputs, self._loaded.path)
        return logits[:, yes] if no is None else logits[:, yes] - logits[:, no]

    def describe(self) -> dict[str, Any]:
        encoder, config = self._loaded.encoder, self._loaded.config
        return {
            "engine": "native",
            "architecture": config.get("model_type"),
            "weight_bytes": encoder.weight_bytes,
            "isa": chosen_isa(),
            "threads": self._threads,
        }


def _encoder(
    path: Path, settings: Settings | None, request: LoadRequest, reranks: bool, max_length: int | None
) -> EncoderBackend:
    loaded = open_text_encoder(request.path, request.low_bit, request.threads)
    spec, tokenizer = loaded.encoder.spec, loaded.tokenizer
    assert spec.embedding is not None  # text encoders have a table of tokens
    if loaded.path.is_dir():  # with the ends that tokenizer.json adds
        tokenizer = text_from_folder(loaded.path, loaded.config, keep_ends=True)
    if tokenizer is None:
        raise _no_tokenizer(path)
    if loaded.metadata and not reranks:
        settings = gguf_settings(loaded.metadata, lambda key, problem: ModelFormatError(path, key, None, problem))
    settings = settings or Settings()
    if reranks:
        if loaded.head is None:
            raise UnsupportedModelError(
                f"{path}: has no classifier, so it scores no pairs", hint="open it as an embedding model"
            )
        yes_and_no((), loaded.head.outputs, path)
    elif not settings.modes:
        settings = replace(settings, modes=("mean",))
    heads = Heads.of(settings, spec.hidden, request.threads)
    if loaded.heads is not None and not reranks:
        heads = Heads([*heads.layers, loaded.heads], loaded.heads.outputs)
    elif loaded.metadata.get("general.architecture") == "gemma-embedding":
        _log.warning(
            "%s: has no dense layers (dense_2, dense_3), so its vectors are not those of EmbeddingGemma; convert the"
            " model again with the layers of sentence-transformers", path,
        )  # fmt: skip
    limit = longest(settings, tokenizer, int(loaded.config["max_length"]), max_length)
    kinds = 0 if spec.types is None else spec.types.shape[0]
    maker = InputMaker(tokenizer, tokenizer.layout, limit, spec.embedding.shape[0], kinds > 1, settings.lowercase)
    return EncoderBackend(loaded, settings, maker, heads, request.threads)


def _causal(
    path: Path, settings: Settings | None, request: LoadRequest, reranks: bool, max_length: int | None
) -> CausalBackend:
    checkpoint = open_causal(request.path)
    try:
        tokenizer = checkpoint.text_tokenizer()
        if tokenizer is None:
            raise _no_tokenizer(path)
        layout = tokenizer.layout
        if isinstance(checkpoint, CausalGguf):
            settings = gguf_settings(checkpoint.metadata, checkpoint.error_of)
            layout = layout if reranks else checkpoint.layout(tokenizer)
        settings = settings or Settings()
        if not settings.modes:  # not the mean, which early rows of a causal model spoil
            settings = replace(settings, modes=("lasttoken",))
        classifier = checkpoint.classifier() if reranks and isinstance(checkpoint, CausalGguf | CausalFolder) else None
        template = _template(path, tokenizer, checkpoint.config) if reranks else None
        model = CausalRows.load(checkpoint, request)
        limit = longest(settings, tokenizer, model.max_length, max_length)
        maker = InputMaker(tokenizer, layout, limit, model.vocab, lowercase=settings.lowercase)
        score = _scorer(path, model, checkpoint, tokenizer, settings, classifier) if reranks else None
        heads = Heads.of(settings, model.hidden, request.threads)
        return CausalBackend(model, settings, maker, heads, template, score)
    finally:
        checkpoint.close()


def _template(path: Path, tokenizer: TextTokenizer, config: dict[str, Any]) -> RankTemplate:
    """Return the prompt of a reranker: the one in its file, or Qwen3-Reranker's."""
    named = tokenizer.chat_template
    if isinstance(named, dict) and "rerank" in named:
        return RankTemplate.of(named["rerank"], tokenizer)
    if config["model_type"] != "qwen3":
        raise UnsupportedModelError(
            f"{path}: is a reranker made of a {config['model_type']} model without a template for reranking",
            hint='GGUF files have it under "rerank"; folders are supported for qwen3 and for encoders',
        )
    return RankTemplate.of(QWEN_TEMPLATE, tokenizer)


def _scorer(
    path: Path,
    model: CausalRows,
    checkpoint: Any,
    tokenizer: TextTokenizer,
    settings: Settings,
    classifier: Floats | None,
) -> Callable[[Sequence[TextInput]], Floats]:
    """Return what computes the logit of relevance: by the classifier, else by the lm_head's rows of yes and no."""
    if classifier is None:
        ids = answer_ids(tokenizer) if settings.yes is None or settings.no is None else (settings.yes, settings.no)
        if max(ids) >= model.vocab:
            raise UnsupportedModelError(f"{path}: tokens {ids[0]} and {ids[1]} are not in the model's vocabulary")

        def by_head(inputs: Sequence[TextInput]) -> Floats:
            logits = model.logits(inputs, ids)
            return logits[:, 0] - logits[:, 1]

        return by_head
    names = checkpoint.labels() if isinstance(checkpoint, CausalGguf) else ()
    yes, no = yes_and_no(names, len(classifier), path)
    weights = classifier[yes].astype(np.float64)
    if no is not None:
        weights = weights - classifier[no]

    def by_classifier(inputs: Sequence[TextInput]) -> Floats:
        found = [np.add.reduce(rows[-1] * weights) for rows in model.rows(inputs, last=True)]
        return np.array(found, np.float32)

    return by_classifier


def longest(settings: Settings, tokenizer: TextTokenizer, positions: int, wanted: int | None) -> int:
    """Return the largest number of tokens of a text. Raises InputError for a wanted length beyond the model's."""
    stated = settings.max_length if settings.max_length is not None else tokenizer.model_max_length
    limit = positions if stated is None else min(positions, stated)
    if wanted is None:
        return limit
    if type(wanted) is not int or not 1 <= wanted <= positions:
        raise InputError(argument="max_length", got=wanted, allowed=f"1 to {positions} tokens, the model's positions")
    return wanted


def _no_tokenizer(path: Path) -> InputError:
    return InputError(
        f"{path} carries no tokenizer, so text cannot be turned into tokens",
        hint="put its tokenizer.json or tokenizer.model into the folder",
    )
