"""Copies of a model: in this process they share the engine, in another they load it again."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from ipex_lookahead.errors import InputError


class Copying:
    """``copy.copy``, ``copy.deepcopy``, pickle, and with pickle spawned workers and ``torch.save``.

    An engine's weights never change, so a copy in this process runs on the same engine, with statistics, settings and
    memory of its own. A pickle holds no weights: it holds what the model was made with (the checkpoint's path and the
    arguments of ``from_pretrained``, or the model that was wrapped) and the generation config, and makes the model
    again where it is read. The checkpoint must be there, and be the same.
    """

    engine: Any
    config: Any
    generation_config: Any
    low_bit: str
    tokenizer: Any
    source: Any
    costs: Any
    speculative: bool
    _checkpoint_config: dict[str, Any] | None
    _draft_used: tuple[Any, ...]
    _origin: Callable[[], Any] | None

    def __copy__(self) -> Any:
        return self.__deepcopy__({})

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        make: Any = type(self)
        twin = make(
            self.config,
            self.engine,
            generation_config=copy.deepcopy(self.generation_config),
            low_bit=self.low_bit,
            tokenizer=self.tokenizer,
            source=self.source,
            checkpoint_config=self._checkpoint_config,
            speculative=self.speculative,
            origin=self._origin,
        )
        twin.runtime.costs = self.costs
        twin.use_draft_model(*self._draft_used or (None,))
        memo[id(self)] = twin
        return twin

    def __reduce__(self) -> Any:
        if self._origin is None:
            raise InputError(
                "this model was created in memory, so a pickle cannot record how to load it again; pickle one that"
                " from_pretrained has loaded or that wrap() has made"
            )
        return self._origin, (), {"generation_config": self.generation_config, "draft_model": self._draft_used}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """State of a pickle in addition to the loading arguments."""
        self.generation_config = state["generation_config"]
        made: Any = self
        made.use_draft_model(*state["draft_model"] or (None,))
