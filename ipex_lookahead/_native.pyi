"""Native core of ipex_lookahead: decoder, KV cache, quantizers, sampler."""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray

class BusyError(RuntimeError):
    pass

class MissingWeightError(RuntimeError):
    pass

class NonFiniteError(RuntimeError):
    pass

def known_isas() -> list[str]: ...
def available_isas() -> list[str]: ...
def amx_state() -> str: ...
def weight_formats() -> dict: ...
def rope_tables(rope: object, positions: int) -> tuple: ...
def chosen_isa(name: str = "") -> str: ...
def most_search_lanes() -> int: ...
def quantize(
    format: str,
    values: Annotated[NDArray, dict(shape=(None, None), order="C", device="cpu", writable=False)],
    kind: str,
    importance: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    searched: str,
    size: int,
    numbers: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    whole: bool,
    tries: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    step_limit: int,
    code_of: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
    largest: float,
    codes: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order="C", device="cpu")],
    scales: Annotated[NDArray[numpy.uint16], dict(shape=(None, None), order="C", device="cpu")] | None,
    minimums: Annotated[NDArray[numpy.uint16], dict(shape=(None, None), order="C", device="cpu")] | None,
    threads: int,
    lanes: int = 0,
) -> int: ...
def prepack(
    format: str,
    n_out: int,
    n_in: int,
    group: int,
    codes: Annotated[NDArray, dict(shape=(None, None), order="C", device="cpu", writable=False)],
    scales: Annotated[NDArray[numpy.uint16], dict(shape=(None, None), order="C", device="cpu", writable=False)] | None,
    minimums: Annotated[NDArray[numpy.uint16], dict(shape=(None, None), order="C", device="cpu", writable=False)]
    | None,
    threads: int,
) -> tuple: ...
def unpack(
    format: str,
    n_out: int,
    n_in: int,
    group: int,
    codes: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
    scales: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order="C", device="cpu", writable=False)] | None,
    minimums: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order="C", device="cpu", writable=False)] | None,
    steps: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)] | None,
    threads: int,
) -> object: ...
def sample(
    logits: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    seed: int,
    sequence: int,
    position: int,
) -> int: ...
def lead(
    logits: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    temperature: float,
    seed: int,
    sequence: int,
    position: int,
    token: int,
) -> float: ...
def read_bandwidth(bytes: int, threads: int, isa: str = "") -> float: ...
def integer_peak(threads: int, isa: str = "") -> float: ...

class LinearPool:
    def __init__(self, threads: int, isa: str = "") -> None: ...
    @property
    def isa(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def weight_bytes(self) -> int: ...

class LinearLayer:
    def __init__(
        self,
        pool: LinearPool,
        format: str,
        n_out: int,
        n_in: int,
        group: int,
        codes: Annotated[NDArray, dict(shape=(None, None), order="C", device="cpu", writable=False)],
        scales: Annotated[NDArray[numpy.uint16], dict(shape=(None, None), order="C", device="cpu", writable=False)]
        | None,
        minimums: Annotated[NDArray[numpy.uint16], dict(shape=(None, None), order="C", device="cpu", writable=False)]
        | None,
        bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)] | None,
    ) -> None: ...
    @property
    def n_in(self) -> int: ...
    @property
    def n_out(self) -> int: ...
    def export(self) -> object: ...
    def into(
        self,
        x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
        out: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu")],
    ) -> None: ...
    def run_at(self, x: int, rows: int, out: int) -> None: ...
    def __call__(
        self,
        arg: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
        /,
    ) -> object: ...

class SuffixTrie:
    def __init__(self, depth: int) -> None: ...
    def __len__(self) -> int: ...
    def extend(
        self, text: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)]
    ) -> None: ...
    def extend_all(
        self,
        tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
        lengths: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    ) -> None: ...
    def reserve(self, nodes: int) -> None: ...
    def followers(
        self, context: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)]
    ) -> list[tuple[int, int]]: ...

class Predictor:
    def __init__(self, depth: int, width: int, store: SuffixTrie | None) -> None: ...
    def begin(
        self, prompt: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)]
    ) -> None: ...
    def propose(self, budget: int) -> tuple: ...
    def observe(
        self,
        tokens: Sequence[int],
        parents: Sequence[int],
        emitted: Sequence[int],
        top: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order="C", device="cpu", writable=False)] | None,
    ) -> None: ...

class Cache:
    @property
    def length(self) -> int: ...
    def keep(self, rows: Sequence[int]) -> None: ...
    def crop(self, length: int) -> int: ...
    def fork(self) -> Cache: ...
    def checkpoint(self) -> None: ...
    def follow(self, head: Decoder) -> None: ...
    def allow_tokens(
        self, tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)]
    ) -> None: ...
    def end_draft(self) -> None: ...
    def fill_blank(self, length: int) -> None: ...
    def export_pages(self, first: int, last: int) -> object: ...
    def export_state(self) -> object: ...
    def import_pages(
        self,
        first: int,
        last: int,
        data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
    ) -> None: ...
    def import_state(
        self,
        length: int,
        data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
    ) -> None: ...
    @property
    def bytes(self) -> int: ...
    @property
    def state_bytes(self) -> int: ...

class Adapter:
    @property
    def bytes(self) -> int: ...

class Decoder:
    def __init__(self, spec: object, threads: int, isa: str, kv_format: str, target: Decoder | None = None) -> None: ...
    def set_order(
        self,
        name: str,
        order: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    ) -> None: ...
    def missing(self) -> str: ...
    def new_cache(self) -> Cache: ...
    def experts_touched(self) -> int: ...
    def forward(
        self,
        caches: Sequence[object],
        counts: Sequence[int],
        settled: Sequence[int],
        tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
        parents: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
        want: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)] | None,
        logits: bool,
        top: int,
        hidden_layers: Sequence[int],
        hidden_rows: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)]
        | None,
        timings: bool,
        features: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)]
        | None = None,
        own_features: bool = False,
        adapters: Sequence[object] = [],
        adapter_scales: Sequence[float] = [],
        offsets: Sequence[int] = [],
        images: tuple | None = None,
    ) -> tuple: ...
    def load_adapter(
        self,
        changes: Sequence[
            tuple[
                str,
                Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
                Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
                float,
            ]
        ],
    ) -> Adapter: ...
    def draft(
        self,
        cache: Cache,
        last: int,
        copied: Sequence[int],
        max_tokens: int,
        rates: Sequence[float],
        min_chance: float,
        ends: Sequence[int],
        draw: tuple[float, int, float, float, int, int, int] | None,
    ) -> tuple: ...
    def draft_step(self, cache: Cache, token: int, first: bool) -> object: ...
    def set_outputs(
        self, tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)]
    ) -> None: ...
    def set_whole_head(
        self,
        format: str,
        n_out: int,
        n_in: int,
        group: int,
        codes: Annotated[NDArray, dict(shape=(None, None), order="C", device="cpu", writable=False)],
        scales: Annotated[NDArray[numpy.uint16], dict(shape=(None, None), order="C", device="cpu", writable=False)]
        | None,
        minimums: Annotated[NDArray[numpy.uint16], dict(shape=(None, None), order="C", device="cpu", writable=False)]
        | None,
    ) -> None: ...
    def share_whole_head(self, other: Decoder, theirs: str) -> None: ...
    def share_matrix(self, name: str, other: Decoder, theirs: str) -> None: ...
    @property
    def cache_bytes_per_position(self) -> int: ...
    @property
    def cache_state_bytes(self) -> int: ...
    def set_matrix(
        self,
        name: str,
        format: str,
        n_out: int,
        n_in: int,
        group: int,
        codes: Annotated[NDArray, dict(shape=(None, None), order="C", device="cpu", writable=False)],
        scales: Annotated[NDArray[numpy.uint16], dict(shape=(None, None), order="C", device="cpu", writable=False)]
        | None,
        minimums: Annotated[NDArray[numpy.uint16], dict(shape=(None, None), order="C", device="cpu", writable=False)]
        | None,
    ) -> None: ...
    def set_vector(
        self,
        name: str,
        values: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    ) -> None: ...
    def export_matrix(self, name: str) -> object: ...
    def export_vector(self, name: str) -> object: ...
    @property
    def isa(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def weight_bytes(self) -> int: ...

class RoutedExperts:
    def __init__(self, layers: Sequence[object], hidden: int, threads: int, isa: str = "") -> None: ...
    def __call__(
        self,
        layer: int,
        x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
        experts: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
        weights: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    ) -> tuple: ...
    def set_matrix(
        self,
        name: str,
        format: str,
        n_out: int,
        n_in: int,
        group: int,
        codes: Annotated[NDArray, dict(shape=(None, None), order="C", device="cpu", writable=False)],
        scales: Annotated[NDArray[numpy.uint16], dict(shape=(None, None), order="C", device="cpu", writable=False)]
        | None,
        minimums: Annotated[NDArray[numpy.uint16], dict(shape=(None, None), order="C", device="cpu", writable=False)]
        | None,
    ) -> None: ...
    def set_vector(
        self,
        name: str,
        values: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    ) -> None: ...
    def export_matrix(self, name: str) -> object: ...
    def export_vector(self, name: str) -> object: ...
    @property
    def isa(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def weight_bytes(self) -> int: ...

class Encoder:
    def __init__(self, spec: object, threads: int, isa: str = "") -> None: ...
    @property
    def slice_rows(self) -> int: ...
    def missing(self) -> str: ...
    def chain(
        self,
        number: int,
        x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    ) -> object: ...
    def set_matrix(
        self,
        name: str,
        format: str,
        n_out: int,
        n_in: int,
        group: int,
        codes: Annotated[NDArray, dict(shape=(None, None), order="C", device="cpu", writable=False)],
        scales: Annotated[NDArray[numpy.uint16], dict(shape=(None, None), order="C", device="cpu", writable=False)]
        | None,
        minimums: Annotated[NDArray[numpy.uint16], dict(shape=(None, None), order="C", device="cpu", writable=False)]
        | None,
    ) -> None: ...
    def set_vector(
        self,
        name: str,
        values: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    ) -> None: ...
    def export_matrix(self, name: str) -> object: ...
    def export_vector(self, name: str) -> object: ...
    @property
    def isa(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def weight_bytes(self) -> int: ...

class EncoderPass:
    def __init__(
        self,
        encoder: Encoder,
        x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
        cos: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)]
        | None = None,
        sin: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)]
        | None = None,
    ) -> None: ...
    @staticmethod
    def texts(
        encoder: Encoder,
        tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
        lengths: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
        types: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)]
        | None = None,
    ) -> EncoderPass: ...
    def advance(self, until: int, work: int = 0) -> None: ...
    @property
    def layer(self) -> int: ...
    def rows(self, encoder: Encoder) -> object: ...
