"""A loaded SentencePiece model, for both kinds of tokenizer, and the marker of a saved one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sentencepiece

from ipex_lookahead.tokenization.growth import check_ids

MARKER = "ipex_lookahead"
"""Key of ``tokenizer_config.json``: an object with ``vocabulary``, the file that this package reads first."""


class Pieces:
    """A loaded SentencePiece model, without special tokens.

    Args:
        model: A serialized model, checked by ``sentencepiece_model.py``.

    Attributes:
        model: The serialized model.
        texts: Piece of each id.
    """

    def __init__(self, model: bytes) -> None:
        """Load the model. Raises RuntimeError if the sentencepiece package rejects it."""
        self.model = model
        self.processor = sentencepiece.SentencePieceProcessor()
        self.processor.LoadFromSerializedProto(model)
        self.texts: list[str] = list(self.processor.id_to_piece(list(range(self.processor.get_piece_size()))))
        probe = self.encode("a")
        self._dummy_prefix = bool(probe) and self.texts[probe[0]].startswith("▁")

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text; special tokens in it are text."""
        ids: list[int] = list(self.processor.encode(text))
        check_ids(text, ids)
        return ids

    def decode(self, ids: Sequence[int], added: Mapping[int, str]) -> str:
        """Return the text of pieces and added tokens; unknown ids are skipped."""
        parts: list[str] = []
        run: list[int] = []

        def flush() -> None:
            if run:
                # sentencepiece removes a dummy prefix from each run; only the first run has one.
                space = " " if parts and self._dummy_prefix and self.texts[run[0]].startswith("▁") else ""
                parts.append(space + str(self.processor.decode(run)))
                run.clear()

        for i in ids:
            if i in added:
                flush()
                parts.append(added[i])
            elif 0 <= i < len(self.texts):
                run.append(i)
        flush()
        return "".join(parts)
