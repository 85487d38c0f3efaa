"""What both kinds of tokenizer are made of: a loaded SentencePiece model, and the mark in a folder that names it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sentencepiece

from ipex_lookahead.tokenization.growth import check_ids

MARKER = "ipex_lookahead"
"""Key of ``tokenizer_config.json``: an object whose ``vocabulary`` is the file that this package reads first."""


class Pieces:
    """A SentencePiece model, loaded: text without special tokens to ids, and ids to text.

    Args:
        model: a serialised model that ``sentencepiece_model.py`` has checked.

    Attributes:
        model: those bytes.
        texts: the pieces, by id.
    """

    def __init__(self, model: bytes) -> None:
        """Raises RuntimeError where the sentencepiece package does not take the model."""
        self.model = model
        self.processor = sentencepiece.SentencePieceProcessor()
        self.processor.LoadFromSerializedProto(model)
        self.texts: list[str] = list(self.processor.id_to_piece(list(range(self.processor.get_piece_size()))))
        probe = self.encode("a")
        self._dummy_prefix = bool(probe) and self.texts[probe[0]].startswith("▁")

    def encode(self, text: str) -> list[int]:
        """Ids of a text, special tokens in it not recognised."""
        ids: list[int] = list(self.processor.encode(text))
        check_ids(text, ids)
        return ids

    def decode(self, ids: Sequence[int], added: Mapping[int, str]) -> str:
        """Runs of ordinary pieces through sentencepiece, added tokens as they are spelled; unknown ids left out."""
        parts: list[str] = []
        run: list[int] = []

        def flush() -> None:
            if run:
                # sentencepiece drops the dummy prefix of what it decodes; only the first run of a text has one to drop.
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
