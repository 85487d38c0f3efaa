"""The models of a server, as the APIs that list and change them see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from fastapi import Request

from ipex_lookahead.conversation.thinking import has_switch
from ipex_lookahead.serving.failures import ApiError
from ipex_lookahead.serving.purposes import TEXT
from ipex_lookahead.serving.server import Server
from ipex_lookahead.vision.images import ImageLimits

State = Literal["unloaded", "downloading", "loading", "ready", "draining", "failed"]
_REPORTED = ("engine", "isa", "threads", "low_bit", "kv_cache", "weight_bytes", "kv_bytes_per_token", "row_invariant")
"""Facts of the engine that ``meta`` holds."""
LATEST = ":latest"
"""The tag that Ollama's clients append to names."""


class Entry(Protocol):
    """One model of a server.

    Attributes:
        name: name in requests.
        aliases: further names in requests.
        source: path or hub name from which it is loaded; "" if unknown.
        state: "failed" means that the last load failed; a later request tries again.
        memory_bytes: memory that it needs while loaded, in bytes; None if unknown.
        error: message of the last failure; "" if there is none.
        expires_at: time at which it is unloaded if no request arrives, in seconds since 1970; None: never.
        progress: (completed, total) of a running load; (0, 0) if unknown.
        facts: its object in its own ``/v1/models`` when it was last loaded; empty before.
        adapters: names of its adapters, which requests use as models.
        purpose: what it is for: "text", "embedding" or "reranking"; "" if unknown because it is not downloaded.
    """

    @property
    def name(self) -> str: ...
    @property
    def aliases(self) -> Sequence[str]: ...
    @property
    def source(self) -> str: ...
    @property
    def state(self) -> State: ...
    @property
    def memory_bytes(self) -> int | None: ...
    @property
    def error(self) -> str: ...
    @property
    def expires_at(self) -> float | None: ...
    @property
    def progress(self) -> tuple[int, int]: ...
    @property
    def facts(self) -> Mapping[str, Any]: ...
    @property
    def adapters(self) -> Sequence[str]: ...
    @property
    def purpose(self) -> str: ...


class Models(Protocol):
    """The models that a server lists, loads, unloads, adds and removes. Errors are ApiErrors."""

    def entries(self) -> Sequence[Entry]:
        """Return all models in order; the first is the default."""

    def find(self, name: str) -> Entry:
        """Return the model of a name, with or without ``LATEST``; raise a 404 for an unknown name."""

    def check_changeable(self) -> None:
        """Raise a 400 if models cannot be added and removed."""

    async def load(self, name: str) -> None:
        """Load a model and return once it is ready; return at once if it is loaded."""

    async def unload(self, name: str) -> None:
        """Unload a model after its running answers; return at once if it is not loaded."""

    async def add(self, name: str, source: str) -> Any:
        """Add a model."""

    async def remove(self, name: str) -> None:
        """Unload a model and remove it from the list."""


class RouterModels(Models, Protocol):
    """The models of a server that loads them on demand."""

    async def use(self, name: str, key: str = "") -> Any:
        """Load a model, and return a lease: the model stays loaded until its ``close``."""

    def set_keep_alive(self, name: str, seconds: float | None) -> None:
        """Set how long a model stays loaded without a request; None: the server's default, infinite: always."""


def models_of(request: Request) -> Models:
    """Return the models of the server that answers a request."""
    found: Models = request.app.state.models
    return found


def exact(models: Models, name: str) -> Entry:
    """Return the model that has a name, with or without ``LATEST``; raise a 404 for any other name.

    Requests that change models use this in place of ``find``, which answers ``claude-*`` with the default model, and
    the name of an adapter with its model.
    """
    known = {own: entry for entry in models.entries() for own in (*entry.aliases, entry.name)}
    found = known.get(name) or known.get(name.removesuffix(LATEST))
    if found is None:
        said = f"there is no model {name[:200]!r}; this server has {', '.join(known)}"
        raise ApiError(404, said, param="model", code="model_not_found")
    return found


@dataclass(frozen=True, slots=True)
class FixedEntry:
    """The ``Entry`` of a model that stays loaded."""

    name: str
    memory_bytes: int
    facts: Mapping[str, Any]
    state: State = "ready"
    source: str = ""
    error: str = ""
    aliases: tuple[str, ...] = ()
    expires_at: float | None = None
    progress: tuple[int, int] = (0, 0)
    adapters: tuple[str, ...] = ()
    purpose: str = TEXT


class OneModel:
    """The ``Models`` of a server that is one process with one model, which stays loaded.

    Args:
        server: the server.
    """

    def __init__(self, server: Server) -> None:
        self._server = server

    def entries(self) -> list[FixedEntry]:
        """Return one entry for each name of the model; raise a 503 while it is being loaded."""
        first, *others = (self._entry(name) for name in self._server.settings.names)
        return [replace(first, adapters=self._adapters()), *others]

    def find(self, name: str) -> FixedEntry:
        """Return the model; raise a 404 for an unknown name, and a 503 while the model is being loaded."""
        if name not in self._server.names:
            name = name.removesuffix(LATEST)
        self._server.check_name(name)
        self._server.check_ready()
        return self.entries()[0] if name in self._adapters() else self._entry(name)

    def check_changeable(self) -> None:
        """Raise a 400: the server has one model."""
        said = f"this server has one model, {self._server.settings.names[0]}, which stays loaded"
        raise ApiError(400, f"{said}; start it with --models-dir DIR to serve several", code="single_model")

    async def load(self, name: str) -> None:
        """Check the name: the model is loaded."""
        self.find(name)

    async def unload(self, name: str) -> None:
        """Raise a 400: the model stays loaded."""
        self.find(name)
        self.check_changeable()

    async def add(self, name: str, source: str) -> None:
        """Raise a 400: the server has one model."""
        self.check_changeable()

    async def remove(self, name: str) -> None:
        """Raise a 400: the model stays loaded."""
        await self.unload(name)

    def _adapters(self) -> tuple[str, ...]:
        return tuple(self._server.served.model.runtime.adapters) if self._server.purpose == TEXT else ()

    def _entry(self, name: str) -> FixedEntry:
        facts = facts_of(self._server, name)
        return FixedEntry(name, facts["meta"].get("weight_bytes", 0), facts, purpose=self._server.purpose)


def image_limits(server: Server) -> dict[str, int]:
    """Return the limits on the images of a request."""
    own, limits = ImageLimits(), server.limits
    return {
        "count": min(own.count, limits.images),
        "bytes": own.bytes,
        "pixels": own.pixels,
        "body_bytes": limits.image_body_bytes,
    }


def facts_of(server: Server, name: str) -> dict[str, Any]:
    """Return the object of a loaded model in ``/v1/models``."""
    common = {
        "id": name,
        "object": "model",
        "created": server.created,
        "owned_by": "ipex-lookahead",
        "root": server.settings.names[0],
        "purpose": server.purpose,
        "system_fingerprint": server.fingerprint,
    }
    if server.purpose != TEXT:
        embedder = server.embedder()
        return {**common, "max_model_len": embedder.model.max_length, "meta": dict(embedder.facts)}
    served = server.served
    return {
        **common,
        "max_model_len": served.max_context,
        "meta": {
            "architecture": str(served.model.config.get("model_type") or "unknown"),
            "n_vocab": served.vocab_size,
            "n_ctx": served.max_context,
            "chat_template": bool(served.template),
            "special_tokens_in_content": "text" if served.keeps_content_apart else "control tokens",
            "sampling": served.sampling,
            "thinking_switch": has_switch(served.template),
            "images": image_limits(server) if served.sees else None,
            **{fact: served.facts[fact] for fact in _REPORTED if fact in served.facts},
        },
    }
