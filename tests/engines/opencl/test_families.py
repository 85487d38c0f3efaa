"""Every family of the native engine on a device: its bytes."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

pytest.importorskip("pyopencl", reason="pyopencl is not installed (make test-opencl runs these tests)")

from ipex_lookahead.engines.opencl.device import Device
from ipex_lookahead.engines.opencl.supported import check_spec, may_divide
from ipex_lookahead.errors import UnsupportedModelError
from tests.gates import cases, seed
from tests.support.family_table import Variant
from tests.support.opencl_families import EVERY, FORMATS, KV_CACHES, MODELS, NAMES, REFUSED, compare, spec_of

UNDIVIDED = {"gemma4", "gemma4_text", "gemma4_unified_text"}
"""Families with models that run on one device only; ``docs/limits.md`` gives the reason."""


def test_a_feature_without_kernels_is_refused_by_name() -> None:
    refused = [(model_type, variant) for model_type, variant in EVERY if (model_type, variant) not in MODELS]
    assert {model_type for model_type, _ in refused} == REFUSED.keys()
    for model_type, variant in refused:
        with pytest.raises(
            UnsupportedModelError, match=f"{REFUSED[model_type]}.*, which the OpenCL engine does not run"
        ):
            check_spec(spec_of(model_type, variant))


def test_no_other_is_refused_and_the_layers_of_others_may_be_divided_anywhere() -> None:
    found = set()
    for model_type, variant in MODELS:
        spec = spec_of(model_type, variant)
        check_spec(spec)
        if not all(may_divide(spec, layers) for layers in range(1, len(spec.layers))):
            found.add(model_type)
    assert found == UNDIVIDED


@pytest.mark.parametrize("kv_cache", KV_CACHES)
@pytest.mark.parametrize("low_bit", FORMATS)
@pytest.mark.parametrize(("model_type", "variant"), MODELS, ids=NAMES)
@pytest.mark.rotating(40)
def test_a_family_has_the_native_engines_bytes(
    device: Device, tmp_path: Path, model_type: str, variant: Variant, low_bit: str, kv_cache: str
) -> None:
    """Logits and hidden states in pieces and batches, walks over caches, lookahead, divided layers, stored weights."""
    start = zlib.crc32(f"{seed()} {model_type} {variant.name} {low_bit} {kv_cache}".encode())
    compare(tmp_path, model_type, variant, device, low_bit, kv_cache, start, walks=cases(2, 4))
