"""Models behind one interface: rows of texts for vectors, and scores. Encoders and causal language models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ipex_lookahead.embedding.causal import CausalRows
from ipex_lookahead.embedding.causal_files import CausalFolder, CausalGguf, open_causal, yes_and_no
from ipex_lookahead.embedding.dense import Heads
from ipex_lookahead.embedding.inputs import InputMaker, TextInput
from ipex_lookahead.embedding.reranking import QWEN_TEMPLATE, RankTemplate, answer_ids
from ipex_lookahead.embedding.settings import Settings, folder_settings, gguf_settings
from ipex_lookahead.engines.load_weights import Progress
from ipex_lookahead.engines.loading import LoadRequest, cycles_left_alone
from ipex_lookahead.errors import InputError, UnsupportedModelError
from ipex_lookahead.tokenization.text import TextTokenizer

Floats = npt.NDArray[np.float32]


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
        return _causal(path, settings, request, reranks, max_length)


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
