"""The kernels of matrix units, whose products are spelt out here: the scalar core's bytes, and when they are used."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("pyopencl", reason="pyopencl is not installed (make test-opencl runs these tests)")

from ipex_lookahead.engines.opencl import matrix_units
from ipex_lookahead.engines.opencl.device import Device, device_of
from ipex_lookahead.engines.opencl.formats import has_whole_codes
from ipex_lookahead.engines.opencl.linear import Matrix, Product
from ipex_lookahead.engines.opencl.matrix_units import EXTENSION, PATH, difference, use_matrix_units
from ipex_lookahead.engines.opencl.programs import DOT, SUBGROUPS, Units
from ipex_lookahead.formats import FORMATS
from tests.engines.native.test_kernels import linear, make_weight
from tests.engines.opencl.conftest import need
from tests.engines.opencl.test_engine import both, in_pieces
from tests.engines.opencl.test_linear import activations
from tests.support.native import ids_of, run
from tests.support.specs import make_spec

WHOLE = [name for name in FORMATS if has_whole_codes(name)]


@pytest.fixture(params=[8, 16], ids="subgroups of {}".format)
def spelt_out(request: pytest.FixtureRequest) -> Iterator[Device]:
    """A device whose kernels are those of matrix units, in subgroups of 8 and of 16."""
    device = device_of(None)
    need(device, SUBGROUPS)
    before, device.units = device.units, Units(request.param, spelt_out=True)
    yield device
    device.units = before


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.rotating(20)
def test_bytes_are_the_scalar_cores(spelt_out: Device, name: str) -> None:
    weight = make_weight(name, 40, 352, group=FORMATS[name].group_sizes[0] or 32, seed=1)
    matrix, x = Matrix.upload(spelt_out, [weight], [None]), activations(23, 352)
    assert matrix.width(16) == (16 if spelt_out.units.width == 8 else spelt_out.width)
    oracle = linear(weight, x, isa="scalar")
    for rows in (5, 8, 9, 16, 23):
        assert Product(matrix, x[:rows]).result().tobytes() == oracle[:rows].tobytes(), rows


def test_a_model_gives_the_native_engines_logits(spelt_out: Device) -> None:
    native, engine = both(make_spec(hidden=96, intermediate=288, layers=1), spelt_out, "sym_int4")
    tokens = ids_of(native, 40)
    expected = run(native, native.new_cache(), tokens).tobytes()
    for pieces in ([40], [1, 7, 16]):
        assert in_pieces(engine, tokens, pieces).tobytes() == expected


def test_they_are_used_where_they_are_there_and_right(monkeypatch: pytest.MonkeyPatch) -> None:
    device = device_of(None)
    if EXTENSION in device.extensions:
        use_matrix_units(device)
        assert device.paths[PATH] == "used"
        return
    use_matrix_units(device)
    assert (device.paths[PATH], device.units) == ("not offered", Units())
    for sizes, wrong, says, units in (
        ([8, 16], "", "used", Units(8)),
        ([16, 32], "", "used", Units(16)),
        ([16], "products with q6_k", "its self-test failed: products with q6_k", Units()),
        ([32], "", "offered for subgroups of 32, and kernels have 8 and 16", Units()),
        ([], "", "offered for subgroups of 0, and kernels have 8 and 16", Units()),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(device, "extensions", device.extensions | {EXTENSION})
            patch.setattr(device, "paths", {})
            patch.setattr(device, "units", Units())
            patch.setattr(matrix_units, "subgroup_sizes", lambda *_, sizes=sizes: sizes)
            patch.setattr(matrix_units, "difference", lambda *_, wrong=wrong: wrong)
            use_matrix_units(device)
            assert (device.paths, device.units) == ({PATH: says}, units)


def test_the_self_test_sees_a_wrong_product_and_a_compiler_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    device = device_of(None)
    need(device, SUBGROUPS)
    assert difference(device, Units(16, spelt_out=True)) == ""
    if EXTENSION not in device.extensions:
        assert "programmed" in difference(device, Units(16))  # there is no such function
    result = Product.result
    monkeypatch.setattr(Product, "result", lambda self: result(self) + np.float32(bool(device.units.width)))
    assert difference(device, Units(16, spelt_out=True)) == "products with sym_int4"
    assert device.units == Units()
    assert DOT not in device.spelling or device.is_gpu
