"""Embedding models and rerankers with the methods that users of sentence-transformers know. Does not need torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from ipex_lookahead.embedding.model import EmbeddingModel, probabilities
from ipex_lookahead.errors import InputError
from ipex_lookahead.hf.ipex_llm_names.arguments import own_arguments, shared_arguments, wanted_format
from ipex_lookahead.hub import resolve_model
from ipex_lookahead.runtime.loading import progress_bar
from ipex_lookahead.system.extras import need_torch

if TYPE_CHECKING:
    from typing_extensions import Self

Floats = npt.NDArray[np.float32]
_WITHOUT_EFFECT = ("batch_size", "show_progress_bar", "num_workers", "chunk_size", "pool")
"""Arguments of sentence-transformers that change no vector."""
_ONLY_DEFAULT: Mapping[str, tuple[Any, ...]] = {
    "output_value": ("sentence_embedding",), "precision": ("float32",), "device": (None, "cpu"),
}  # fmt: skip
_TO_ONE = ("cosine", "dot", "euclidean", "manhattan")


class AutoModelForEmbedding:
    """Loads embedding models and rerankers."""

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | PathLike[str],
        *,
        load_in_low_bit: str | None = None,
        load_in_4bit: bool = False,
        load_in_8bit: bool = False,
        threads: int | None = None,
        max_length: int | None = None,
        purpose: Literal["embedding", "reranking"] | None = None,
        device: str | None = None,
        progress: bool = True,
        **others: Any,
    ) -> EmbeddingEncoder:
        """Load a folder in the form of sentence-transformers, a GGUF file, a short name or a hub id.

        Args:
            pretrained_model_name_or_path: path or name of the model; `ipex-lookahead pull` lists the short names.
            load_in_low_bit: a key of ``FORMATS`` such as ``sym_int8``, or a preset. None keeps the file's formats.
            load_in_4bit: same as ``load_in_low_bit="sym_int4"``.
            load_in_8bit: same as ``load_in_low_bit="sym_int8"``.
            threads: number of threads; None = the physical cores that this process may use.
            max_length: largest number of tokens of a text; None = the model's.
            purpose: "embedding" or "reranking"; None = by the model's files.
            device: "cpu" or None.
            progress: show a progress bar while weights are packed.
            **others: the hub's arguments, and arguments of transformers that have no effect or must be at their
                default, as for ``AutoModelForCausalLM``.

        Raises:
            InputError: no such model, an invalid argument, or a model that generates text.
            ModelFormatError: the model's bytes do not match its format.
            UnsupportedModelError: this package cannot run the model.
            DownloadError: the model could not be downloaded.
        """
        shared = shared_arguments("from_pretrained", others, own_arguments(cls.from_pretrained))
        if device not in (None, "cpu"):
            raise InputError(argument="device", got=device, allowed="'cpu': embedding models run on the CPU")
        low_bit = wanted_format(load_in_low_bit, load_in_4bit=load_in_4bit, load_in_8bit=load_in_8bit)
        path = resolve_model(str(pretrained_model_name_or_path), progress=progress, options=shared.hub)
        with progress_bar(progress) as report:
            model = EmbeddingModel.open(
                path,
                load_in_low_bit=low_bit,
                threads=threads,
                max_length=max_length,
                purpose=purpose,
                progress=report,
            )
        return EmbeddingEncoder(model)


class EmbeddingEncoder:
    """An embedding model with the methods of ``SentenceTransformer``, or a reranker with those of ``CrossEncoder``.

    Attributes:
        model: the model in this package's own form.
    """

    def __init__(self, model: EmbeddingModel) -> None:
        self.model = model

    @property
    def tokenizer(self) -> Any:
        """The tokenizer."""
        return self.model.tokenizer

    @property
    def prompts(self) -> Mapping[str, str]:
        """Name of a prompt -> text before each text."""
        return self.model.prompts

    @property
    def max_seq_length(self) -> int:
        """Largest number of tokens of a text."""
        return self.model.max_length

    def get_embedding_dimension(self) -> int:
        """Return the length of the vectors."""
        return self.model.dimensions

    get_sentence_embedding_dimension = get_embedding_dimension

    def encode(
        self,
        sentences: str | Sequence[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        **others: Any,
    ) -> Any:
        """Return the vectors of texts.

        Args:
            sentences: a text, or several.
            prompt_name: name of the prompt before each text; None: the model's default.
            prompt: text before each text, instead of a named one.
            normalize_embeddings: give all vectors length 1; False: as the model's files state.
            truncate_dim: number of leading values to keep.
            convert_to_numpy: True for an array, False for a list of arrays.
            convert_to_tensor: return a tensor of torch.
            **others: ``batch_size`` and ``show_progress_bar``, which have no effect.

        Returns:
            float32 [texts, dimensions]; of a single text, [dimensions].
        """
        return self._encoded(
            sentences, prompt_name, prompt, normalize_embeddings, truncate_dim, convert_to_numpy, convert_to_tensor,
            others,
        )  # fmt: skip

    def encode_query(self, sentences: str | Sequence[str], *, prompt_name: str = "query", **options: Any) -> Any:
        """Return the vectors of queries, with the model's prompt for them; see :meth:`encode`."""
        return self.encode(sentences, prompt_name=prompt_name, **options)

    def encode_document(self, sentences: str | Sequence[str], *, prompt_name: str = "document", **options: Any) -> Any:
        """Return the vectors of documents, with the model's prompt for them; see :meth:`encode`."""
        return self.encode(sentences, prompt_name=prompt_name, **options)

    def similarity(self, one: Any, other: Any) -> Floats:
        """Return the similarity of each vector of ``one`` with each of ``other``, float32 [n, m].

        The model's files name the measure; without a name it is the cosine.
        """
        a, b = (np.atleast_2d(np.asarray(each, np.float64)) for each in (one, other))
        name = self.model.similarity
        if name not in _TO_ONE:
            raise InputError(f"similarity {name!r} is not supported; known are {', '.join(_TO_ONE)}")
        found: npt.NDArray[np.float64]
        if name in ("cosine", "dot"):
            if name == "cosine":
                a, b = (x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12) for x in (a, b))
            found = a @ b.T
        else:
            order = 2 if name == "euclidean" else 1
            found = -np.stack([np.linalg.norm(b - row, ord=order, axis=1) for row in a])
        return found.astype(np.float32)

    def predict(
        self,
        sentences: Sequence[Any],
        *,
        activation_fn: Callable[[Any], Any] | None = None,
        convert_to_tensor: bool = False,
        **others: Any,
    ) -> Any:
        """Return the scores of pairs (query, document): probabilities, the sigmoid of the model's logits.

        Args:
            sentences: a pair, or several.
            activation_fn: function of the logits instead of the sigmoid, such as ``torch.nn.Identity()``.
            convert_to_tensor: return a tensor of torch.
            **others: ``batch_size`` and ``show_progress_bar``, which have no effect.
        """
        _check_others("predict", others)
        single = len(sentences) == 2 and all(isinstance(one, str) for one in sentences)
        pairs = [sentences] if single else list(sentences)
        inputs = []
        for number, pair in enumerate(pairs):
            if isinstance(pair, str) or len(pair) != 2:
                raise InputError(f"pair {number} is {pair!r:.80}; it must be a query and a document")
            inputs += self.model.pairs(pair[0], [pair[1]])
        logits = self.model.scores(inputs)
        if activation_fn is None:
            found: Any = probabilities(logits)
        else:
            found = activation_fn(_tensor(logits))
            found = found if convert_to_tensor else np.asarray(found)
        found = _tensor(found) if convert_to_tensor and isinstance(found, np.ndarray) else found
        return found[0] if single else found

    def rank(
        self, query: str, documents: Sequence[str], top_k: int | None = None, *, return_documents: bool = False
    ) -> list[dict[str, Any]]:
        """Return documents by relevance, the best first: ``corpus_id``, ``score`` (a probability), perhaps ``text``."""
        found = self.model.rank(query, documents, top_n=top_k)
        return [
            {
                "corpus_id": one.index,
                "score": float(probabilities([one.score])[0]),
                **({"text": documents[one.index]} if return_documents else {}),
            }
            for one in found
        ]

    def close(self) -> None:
        """Release the model's memory."""
        self.model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _encoded(
        self,
        sentences: str | Sequence[str],
        task: str | None,
        prompt: str | None,
        normalize: bool,
        dimensions: int | None,
        as_array: bool,
        as_tensor: bool,
        others: Mapping[str, Any],
    ) -> Any:
        _check_others("encode", others)
        found = self.model.embed(
            sentences, task=task, prompt=prompt, dimensions=dimensions, normalize=True if normalize else None
        ).vectors
        made: Any = found[0] if isinstance(sentences, str) else found
        if as_tensor:
            return _tensor(made)
        return made if as_array or isinstance(sentences, str) else list(found)


def _check_others(method: str, given: Mapping[str, Any]) -> None:
    """Raise InputError for an argument that would have an effect in sentence-transformers and has none here."""
    for name, value in given.items():
        if name in _ONLY_DEFAULT:
            if value not in _ONLY_DEFAULT[name]:
                raise InputError(f"{method} takes {name}={_ONLY_DEFAULT[name][0]!r} only, not {value!r}")
        elif name not in _WITHOUT_EFFECT:
            raise InputError(f"{method} does not know {name!r}", hint="see the Python reference for its arguments")


def _tensor(values: Any) -> Any:
    need_torch("convert_to_tensor")
    import torch

    return torch.from_numpy(np.ascontiguousarray(values))
