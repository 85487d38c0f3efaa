"""A model as conversations need it: its chat template, its special tokens, and the compiler of its grammars."""

from __future__ import annotations

import threading
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

from ipex_lookahead.architectures.spec import ImageInputs
from ipex_lookahead.checkpoints.config_json import read_json
from ipex_lookahead.conversation.grammar import Compiler, Grammars
from ipex_lookahead.conversation.vocabulary import token_bytes
from ipex_lookahead.engines.api import TakesImages
from ipex_lookahead.errors import InputError, LookaheadError, arg
from ipex_lookahead.runtime.text_model import TextModel
from ipex_lookahead.vision.mmproj import mmproj_of
from ipex_lookahead.vision.model import VisionModel, described


class ChatModel:
    """A loaded model, and what its conversations share, each made on first use. For any number of threads.

    Args:
        model: the loaded model.

    Attributes:
        model, tokenizer: as loaded.
        eos_ids: ids that end an answer.
        vocab_size, max_context: of the engine, in tokens.
        think_budget: most tokens of thought in an answer, where a request does not limit them; None: no limit.
        think_sentence: text that ends a thought at its budget.
        mmproj: the GGUF file with the vision part; None: the one next to the model's GGUF file, or the model's folder.
    """

    def __init__(self, model: TextModel) -> None:
        self.model = model
        self.tokenizer = model.tokenizer
        self.vocab_size = model.engine.vocab_size
        self.max_context = model.engine.max_context
        self.eos_ids = model.eos_ids
        self.think_budget: int | None = None
        self.think_sentence = ""
        self._compiler: Compiler | None = None
        self._compiling = threading.Lock()
        self.mmproj = model.mmproj
        self._vision: VisionModel | None = None
        self._seeing = threading.Lock()

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

    def spelling(self, token: int) -> str:
        """Return a token's text in prompts. Raises InputError for an id that the vocabulary does not have."""
        for vocabulary in (self.special_tokens, self.tokenizer.get_vocab()):
            if (found := next((text for text, i in vocabulary.items() if i == token), None)) is not None:
                return found
        raise InputError(f"the model's vocabulary has no token {token}, which images need")

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

    @property
    def image_token(self) -> int:
        """Id of the placeholder for a row of an image. Raises InputError if the model or its engine takes no images."""
        return self._images.token

    def check_images(self) -> None:
        """Raise InputError if the model, its engine or its chat template takes no images."""
        _ = self._images
        if not self.template:
            raise InputError("this model has no chat template, which images need")

    @cached_property
    def keeps_content_apart(self) -> bool:
        """Whether control tokens that messages spell stay text."""
        return self.tokenizer.keeps_content_apart()

    @cached_property
    def sees(self) -> bool:
        """Whether conversations may have images, as far as can be seen without loading the vision part."""
        try:
            self.check_images()
            path = self._vision_part()
            if path.is_dir():
                described(read_json(path / "config.json"), path / "config.json")
        except LookaheadError:
            return False
        return find_spec("PIL") is not None

    @property
    def _images(self) -> ImageInputs:
        engine = self.model.engine
        takes = engine.images if isinstance(engine, TakesImages) else None
        if takes is None:
            what = "this model takes" if isinstance(engine, TakesImages) else f"the {engine.name} engine takes"
            raise InputError(f"{what} no images", hint="remove the images, or use a model that takes them")
        return takes

    @property
    def vision(self) -> VisionModel:
        """The model's vision part, which is loaded for the first image.

        Raises:
            InputError: the model or its engine takes no images, or there is no file with the vision part.
            UnsupportedModelError, ModelFormatError, EngineError: see :class:`VisionModel`.
        """
        hidden = self._images.hidden
        with self._seeing:
            if self._vision is None:
                threads = self.model.engine.describe().get("threads")
                path = self._vision_part()
                if path.is_dir():
                    self._vision = VisionModel.open(path, threads=threads)
                else:
                    self._vision = VisionModel.open_mmproj(path, hidden, threads=threads)
            return self._vision

    def _vision_part(self) -> Path:
        """Return the file or folder with the vision part. Raises InputError if there is none."""
        if self.mmproj is not None:
            return self.mmproj
        source = self.model.source
        path = Path(source) if source is not None else None
        if path is not None and path.is_dir():
            return path
        found = None if path is None else mmproj_of(path, self._images.hidden)
        if found is None:
            raise InputError(
                f"there is no mmproj file with the vision part for {'this model' if path is None else path.name} in its"
                " folder",
                hint=f"ipex-lookahead pull MODEL downloads it; or give its path: {arg('mmproj', 'FILE')}",
            )
        return found

    def close(self) -> None:
        """End the compiler's process, if one runs."""
        if self._compiler is not None:
            self._compiler.close()
