"""Copies of a model: in this process they share the engine, in another they load it again."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from ipex_lookahead.errors import InputError
from ipex_lookahead.runtime.runtime import Runtime


class Copying:
    """``copy.copy``, ``copy.deepcopy``, pickle, and with pickle spawned workers and ``torch.save``.

    An engine's weights never change, so a copy in this process runs on the same engine, with statistics, settings and
    memory of its own; copies share adapters. A pickle holds no weights: it holds what the model was made with (the
    checkpoint's path and the arguments of ``from_pretrained``, or the model that was wrapped), the paths of adapters
    and the generation config, and makes the model again where it is read. The files must be there, and be the same.
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
    runtime: Runtime
    _active_adapter: str | None
    _adapters_disabled: bool
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
        twin.runtime.adapters = self.runtime.adapters
        twin._active_adapter, twin._adapters_disabled = self._active_adapter, self._adapters_disabled
        memo[id(self)] = twin
        return twin

    def __reduce__(self) -> Any:
        if self._origin is None:
            raise InputError(
                "this model was created in memory, so a pickle cannot record how to load it again; pickle one that"
                " from_pretrained has loaded or that wrap() has made"
            )
        adapters = [(one.source or one, name) for name, one in self.runtime.adapters.items()]
        state = {"generation_config": self.generation_config, "draft_model": self._draft_used, "adapters": adapters}
        return self._origin, (), {**state, "active": (self._active_adapter, self._adapters_disabled)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """State of a pickle in addition to the loading arguments."""
        self.generation_config = state["generation_config"]
        made: Any = self
        made.use_draft_model(*state["draft_model"] or (None,))
        for adapter, name in state["adapters"]:
            made.runtime.adapters.load(adapter, name)
        made._active_adapter, made._adapters_disabled = state["active"]
