"""``/model`` in a chat: the models on this machine, and the change from one to another."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ipex_lookahead.cli.loading import TextModelOptions, template_note
from ipex_lookahead.cli.model_memory import PROCESS_BYTES, weight_bytes
from ipex_lookahead.engines.machine import free_memory
from ipex_lookahead.errors import InputError, UnsupportedModelError

if TYPE_CHECKING:
    from ipex_lookahead.cli.adapters import AdapterOptions
    from ipex_lookahead.cli.session import Session


class ChatModels:
    """The models that a chat can change to.

    Args:
        loading: The options of the chat. Those of the draft model and the draft head are for its first model alone.
        adapters: The adapters of its first model.

    Attributes:
        name: The name of the current model.
    """

    def __init__(self, loading: TextModelOptions, adapters: AdapterOptions | None = None) -> None:
        self._loading = loading
        self._adapters = adapters
        self.name = loading.model

    def known(self) -> list[tuple[str, int]]:
        """Return the names and sizes in bytes of the models on this machine, the chat's own first."""
        from ipex_lookahead.hub import cached_models
        from ipex_lookahead.hub.choosing import is_vision_part

        there = {model.name: model for model in cached_models() if model.path is not None}
        found = {name: model.size for name, model in there.items() if not is_vision_part(str(model.path))}
        for name in dict.fromkeys((self._loading.model, self.name)):
            found.setdefault(name, _size(name))
        return sorted(found.items(), key=lambda one: one[0] not in (self._loading.model, self.name))

    def change(self, session: Session, name: str) -> None:
        """Load another model and use it in a session; the conversation goes on as text.

        The earlier model is released before if both do not fit in the memory. If the other model cannot be loaded, the
        session continues with the earlier one.

        Raises LookaheadError if the model does not exist, is not supported, does not fit or cannot be loaded.
        """
        from ipex_lookahead.cli.model_facts import describe
        from ipex_lookahead.hub import resolve_model

        if name == self.name:
            raise InputError(f"{name} is already in use")
        path = resolve_model(name)
        facts = describe(path)
        if facts["engine"] is None:
            raise UnsupportedModelError(f"{name} cannot run: {facts['problem']}", hint=facts["hint"])
        needed, free = weight_bytes(path, self._loading.low_bit) + PROCESS_BYTES, free_memory()
        held = int(session.engine_facts.get("weight_bytes", 0))
        if needed > free + held:
            raise InputError(
                f"{name} needs {needed / 1e9:,.1f} GB of memory, and {(free + held) / 1e9:,.1f} GB are free without "
                f"{self.name}",
                hint="choose a smaller model, or start the chat with a smaller --low-bit",
            )
        if needed <= free:
            model = self._load(name)
        else:
            session.release()
            collect()
            try:
                model = self._load(name)
            except BaseException:
                self._restore(session)
                raise
        session.use(model, name)
        self.name = name
        collect()
        if note := template_note(model):
            session.tell(note)

    def _restore(self, session: Session) -> None:
        """Load the released model again; without it, the chat ends."""
        try:
            session.use(self._load(self.name), self.name)
        except BaseException:
            session.over = True
            session.tell(f"error: {self.name} could not be loaded again; the chat ends")
            raise

    def _load(self, name: str) -> Any:
        own = (
            self._loading
            if name == self._loading.model
            else replace(self._loading, model=name, draft_model=None, drafter=None, draft_vocab=None, mmproj=None)
        )
        try:
            model = own.load_text(progress=True)
            if own is self._loading and self._adapters is not None:
                self._adapters.load(model)
            return model
        except MemoryError:
            raise InputError(f"{name} cannot be loaded: out of memory", hint="choose a smaller model") from None


def collect() -> None:
    """Release the memory of a model that is not in use any more; loading froze its objects."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def _size(name: str) -> int:
    """Return the size of a model's files in bytes; 0 if it is not on this machine."""
    from ipex_lookahead.serving.model_files import ModelFiles

    files = ModelFiles.find(name)
    return 0 if files is None else files.size
