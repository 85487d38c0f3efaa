"""An embedding or reranking model that is being served: its batches, its facts and its figures."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fastapi import Request
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from ipex_lookahead.errors import LookaheadError, QueueFullError, ServiceError
from ipex_lookahead.serving.embedding.batcher import Batcher, Values, Wanted
from ipex_lookahead.serving.failures import ApiError, from_ours
from ipex_lookahead.serving.limits import Limits
from ipex_lookahead.serving.metrics import PREFIX, Metrics
from ipex_lookahead.serving.sse import ClientGoneError, unless_gone

if TYPE_CHECKING:
    from ipex_lookahead.embedding.model import EmbeddingModel

_PROBE = "The quick brown fox jumps over the lazy dog."
"""Text of the fingerprint."""


class Embedder:
    """A served embedding or reranking model.

    Args:
        model: as loaded.
        make_batcher: starts the thread that runs the model, after its fingerprint was taken.

    Attributes:
        purpose: "embedding" or "reranking".
        fingerprint: equal for two servers that give the same bytes for the same text.
    """

    def __init__(self, model: EmbeddingModel, make_batcher: Callable[[EmbeddingModel], Batcher] = Batcher) -> None:
        self.model = model
        self.purpose: str = model.purpose
        self.fingerprint = _fingerprint(model)
        self.batcher = make_batcher(model)

    @property
    def facts(self) -> Mapping[str, Any]:
        """Facts of the model for ``meta`` of ``/v1/models``."""
        model = self.model
        facts = {"dimensions": model.dimensions, "max_length": model.max_length, "prompts": sorted(model.prompts)}
        describe = getattr(model, "describe", None)
        return {**facts, **(describe() if describe is not None else {})}

    def close(self, drain: float) -> None:
        """Let requests end for ``drain`` seconds, then end the thread and release the model. Waits."""
        self.batcher.close(drain)
        self.model.close()

    async def values(
        self, request: Request, limits: Limits, metrics: Metrics, inputs: Sequence[Any], wanted: Wanted
    ) -> Values:
        """Return the values of a request's inputs; they are canceled if the client leaves.

        Args:
            request: for its key, and for the client's leaving.
            limits: of the server.
            metrics: count the request.
            inputs: of the model.
            wanted: what is computed.

        Raises:
            ApiError: there are too many requests or tokens, or the model failed.
            ClientGoneError: the client left.
        """
        tokens, began, reason = sum(len(one.ids) for one in inputs), time.perf_counter(), "error"
        most = limits.embedding_tokens
        if tokens > most:
            said = (
                f"the request has {tokens:,} tokens in {len(inputs):,} texts; the limit is {most:,}: send fewer texts"
            )
            raise ApiError(413, said, code="too_large")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Values] = loop.create_future()

        def on_end(result: Values | Exception) -> None:  # in the batcher's thread
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(_settle, done, result)

        try:
            job = self.batcher.submit(inputs, wanted, str(request.scope.get("owner", "")), on_end)
        except LookaheadError as error:
            raise _as_api_error(error) from None
        try:
            found = await unless_gone(request.receive, done)
            reason = "stop"
            return found
        except LookaheadError as error:
            raise _as_api_error(error) from None
        except (ClientGoneError, asyncio.CancelledError):
            reason = "abort"
            raise
        finally:
            self.batcher.cancel(job)
            metrics.embedded(tokens, time.perf_counter() - began, reason)


class EmbedderFigures(Collector):
    """What a batcher counts, read on each scrape."""

    def __init__(self, batcher: Batcher) -> None:
        self._batcher = batcher

    def collect(self) -> Iterable[Any]:
        """See ``prometheus_client``."""
        batcher = self._batcher
        yield GaugeMetricFamily(f"{PREFIX}_num_requests_running", "Requests in batches.", value=batcher.running)
        yield GaugeMetricFamily(
            f"{PREFIX}_num_requests_waiting", "Requests that wait for a batch.", value=batcher.waiting
        )
        yield CounterMetricFamily(f"{PREFIX}_engine_steps", "Batches.", value=batcher.batches)
        yield CounterMetricFamily(f"{PREFIX}_embedding_texts", "Texts and pairs computed.", value=batcher.texts)
        yield CounterMetricFamily(f"{PREFIX}_embedding_tokens", "Tokens computed.", value=batcher.tokens)


def _settle(done: asyncio.Future[Values], result: Values | Exception) -> None:
    if done.done():  # the client has left
        return
    if isinstance(result, Exception):
        done.set_exception(result)
    else:
        done.set_result(result)


def _as_api_error(error: LookaheadError) -> ApiError:
    if isinstance(error, ServiceError) and not isinstance(error, QueueFullError):
        return ApiError(503, str(error), code="draining", headers={"retry-after": "5"})
    return from_ours(error)


def _fingerprint(model: EmbeddingModel) -> str:
    from ipex_lookahead import __version__

    if model.purpose == "reranking":
        found = model.scores(model.pairs(_PROBE, [_PROBE]))
    else:
        found = model.vectors(model.inputs([_PROBE]))
    return "fp_" + hashlib.sha256(__version__.encode() + found.tobytes()).hexdigest()[:16]
