"""Figures for Prometheus. Names end as vLLM's do, so that dashboards need only another prefix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.serving.usage import cached

if TYPE_CHECKING:
    from ipex_lookahead.engines.images import PromptImage
    from ipex_lookahead.runtime.service import Service

PREFIX = "ipex_lookahead"
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1)


class HttpMetrics:
    """The requests of one server, in a registry of their own.

    Args:
        labels: labels of all figures, which distinguish this server from others behind the same address.
        by_model: whether requests are counted by model too.
    """

    def __init__(self, labels: Mapping[str, str] | None = None, *, by_model: bool = False) -> None:
        self._registry = CollectorRegistry()
        self._labels = dict(labels or {})
        self._by_model = by_model
        names = ["path", "status", "model"] if by_model else ["path", "status"]
        made: dict[str, Any] = {"namespace": PREFIX, "registry": self._registry}
        self._requests = Counter("http_requests", f"Requests by {', '.join(names)}.", names, **made)

    def requested(self, path: str, status: int, model: str = "") -> None:
        """A request was answered. ``path`` is one of the routes, never what a client made up."""
        self._requests.labels(path, str(status), *([model] if self._by_model else [])).inc()

    def collect(self, collector: Collector) -> None:
        """Show a collector's figures from now on."""
        self._registry.register(collector)

    def text(self) -> bytes:
        """In Prometheus' format."""
        return generate_latest(_Labeled(self._registry, self._labels) if self._labels else self._registry)


class Metrics(HttpMetrics):
    """The requests and answers of one server.

    Args:
        labels: see ``HttpMetrics``.
    """

    def __init__(self, labels: Mapping[str, str] | None = None) -> None:
        super().__init__(labels)
        made: dict[str, Any] = {"namespace": PREFIX, "registry": self._registry}
        self._ended = Counter("request_success", "Answers by finish reason.", ["finished_reason"], **made)
        self._prompt = Counter("prompt_tokens", "Prompt tokens, including cached ones.", **made)
        self._cached = Counter("prompt_tokens_cached", "Prompt tokens found in the prefix cache.", **made)
        self._images = Counter("images", "Images in prompts.", **made)
        self._image_tokens = Counter("image_tokens", "Prompt tokens of images, including cached ones.", **made)
        self._generated = Counter("generation_tokens", "Tokens generated.", **made)
        self._drafted = Counter("spec_decode_num_draft_tokens", "Draft tokens verified.", ["source"], **made)
        self._accepted = Counter("spec_decode_num_accepted_tokens", "Those of them accepted.", ["source"], **made)
        self._whole: Histogram | None = None
        self._first = Histogram(
            "time_to_first_token_seconds", "From the request to its first token.", buckets=_SECONDS, **made
        )
        self._each = Histogram(
            "time_per_output_token_seconds", "Between tokens after the first.", buckets=_TOKEN_SECONDS, **made
        )

    def embedded(self, tokens: int, seconds: float, reason: str) -> None:
        """Count a request of an embedding or reranking model that ended with "stop", "abort" or "error"."""
        if self._whole is None:
            self._whole = Histogram(
                "e2e_request_latency_seconds",
                "From the request to its end, of embedding and reranking models.",
                buckets=_SECONDS,
                namespace=PREFIX,
                registry=self._registry,
            )
        self._ended.labels(reason).inc()
        self._prompt.inc(tokens)
        self._whole.observe(seconds)

    def watch(self, service: Service) -> None:
        """Show a service's own figures from now on."""
        self.collect(_ServiceFigures(service))

    def seen(self, images: Sequence[PromptImage]) -> None:
        """A request with images was prepared."""
        self._images.inc(len(images))
        self._image_tokens.inc(sum(one.count for one in images))

    def answered(self, stats: GenerationStats, reason: str) -> None:
        """An answer ended."""
        self._ended.labels(reason).inc()
        self._prompt.inc(stats.prompt_tokens)
        self._cached.inc(cached(stats))
        self._generated.inc(stats.tokens)
        stats.fold()
        for source, count in stats.drafted_by_source.items():
            self._drafted.labels(source).inc(count)
        for source, count in stats.accepted_by_source.items():
            self._accepted.labels(source).inc(count)
        if stats.tokens:
            self._first.observe(stats.first_token_seconds)
        if stats.tokens > 1:
            self._each.observe(stats.decode_seconds / (stats.tokens - 1))


def together(texts: Iterable[bytes]) -> bytes:
    """The figures of several servers as one text, with each family once, as Prometheus requires."""
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for text in texts:
        family, new = "", False
        for line in text.decode().splitlines():
            if line.startswith("# HELP "):
                family = line.split(" ")[2]
                new = family not in heads
            if not line.startswith("#"):
                samples.setdefault(family, []).append(line)
            elif new:
                heads.setdefault(family, []).append(line)
    lines = [line for family, head in heads.items() for line in (*head, *samples.get(family, ()))]
    return "".join(line + "\n" for line in lines).encode()


class _Labeled(CollectorRegistry):
    """A registry's figures, each with further labels."""

    def __init__(self, registry: CollectorRegistry, labels: Mapping[str, str]) -> None:
        super().__init__()
        self._other, self._labels = registry, labels

    def collect(self) -> Iterable[Any]:
        """See ``prometheus_client``."""
        for family in self._other.collect():
            family.samples = [sample._replace(labels={**sample.labels, **self._labels}) for sample in family.samples]
            yield family


class _ServiceFigures(Collector):
    """What a service counts itself, read on each scrape."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterable[Any]:
        """See ``prometheus_client``."""
        service = self._service
        gauges = {
            "num_requests_running": ("Answers in the making.", service.running),
            "num_requests_waiting": ("Requests that wait for a slot.", service.waiting),
            "kv_cache_bytes": ("Keys and values held.", service.kv_bytes),
            "prefix_cache_state_bytes": (
                "Bytes of recurrent states cached for later prompts.",
                service.state_bytes,
            ),
            "prefix_cache_pages": ("Pages of 64 positions cached for later prompts.", service.cached_pages),
        }
        disk = service.disk
        if disk is not None:
            gauges["prefix_cache_disk_bytes"] = ("Bytes of the folder of cached prefixes.", disk.folder.total_bytes)
        for name, (said, value) in gauges.items():
            yield GaugeMetricFamily(f"{PREFIX}_{name}", said, value=value)
        counters = {"engine_steps": ("Forwards.", service.steps)}
        if disk is not None:
            counters["prefix_cache_disk_hits"] = ("Prefixes read from disk.", disk.hits)
            counters["prefix_cache_disk_tokens"] = ("Prompt tokens read from disk.", disk.tokens)
            counters["prefix_cache_disk_dropped_writes"] = ("Prefixes that were not written to disk.", disk.dropped)
        for name, (said, value) in counters.items():
            yield CounterMetricFamily(f"{PREFIX}_{name}", said, value=value)
