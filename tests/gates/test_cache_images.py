"""Images of caches of every family, in every format of weights and of keys: an import goes on with the same bytes."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")
pytest.importorskip("transformers", minversion="5", reason="the configs are those of transformers 5")

from ipex_lookahead.architectures import model_types, spec_for
from ipex_lookahead.checkpoints.config_json import checked_config
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.files.safe_json import parse
from tests.gates import cases, seed
from tests.support.family_table import CONTEXT, Variant, variants
from tests.support.image_walks import walk
from tests.support.tiny_families import config_of

MODELS = [(model_type, variant) for model_type in model_types() for variant in variants(model_type)]
FORMATS = ("sym_int4", "asym_int4", "sym_int8", "nf4", "fp8_e4m3", "fp16")


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kv_cache", ["fp16", "int8"])
@pytest.mark.parametrize("low_bit", FORMATS)
@pytest.mark.parametrize(("model_type", "variant"), MODELS, ids=[f"{kind}-{one.name}" for kind, one in MODELS])
@pytest.mark.rotating(40)
def test_an_imported_cache_of_a_family_goes_on_with_the_same_bytes(
    model_type: str, variant: Variant, low_bit: str, kv_cache: str, threads: int
) -> None:
    written = config_of(model_type, variant).to_json_string().encode()
    spec = spec_for(checked_config(parse(written, Path(model_type)), model_type), CONTEXT)
    engine = NativeEngine.random(spec, low_bit, threads=threads, kv_cache=kv_cache)
    start = zlib.crc32(f"{seed()} {model_type} {variant.name} {low_bit} {kv_cache}".encode())
    for number in range(cases(2, 5)):
        walk(engine, start + number, longest=CONTEXT - 6)
