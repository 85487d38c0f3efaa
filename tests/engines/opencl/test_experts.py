"""Mixtures of experts on a device: the choice of experts, their weights, shared experts and norms, as in the core."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("pyopencl", reason="pyopencl is not installed (make test-opencl runs these tests)")

from ipex_lookahead.architectures.spec import Activation
from ipex_lookahead.engines.opencl.device import Device
from ipex_lookahead.engines.opencl.engine import OpenClEngine
from ipex_lookahead.engines.opencl.operations.experts import thresholds
from ipex_lookahead.engines.opencl.supported import SCORES
from ipex_lookahead.errors import NonFiniteError
from tests.engines.opencl.test_engine import both, in_pieces, sorted_weights
from tests.support.native import ids_of, run
from tests.support.specs import make_spec, native_engine, random_weights, reader

SMALL: dict[str, Any] = {"layers": 2, "hidden": 72, "intermediate": 40, "experts": 8, "used": 3}
MIXTURES: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"groups": (4, 2, 1), "router_scale": 16.0, "shared_expert": 70},
    "deepseek_v3": {
        "scores": "sigmoid", "correction": True, "groups": (4, 2, 2), "renormalize": True, "sum_epsilon": 1e-20,
        "router_scale": 2.5, "shared_expert": 96,
    },
    "glm4_moe": {"scores": "sigmoid", "correction": True, "renormalize": True, "shared_expert": 33, "used": 8},
    "ernie4_5_moe": {"correction": True, "renormalize": True, "sum_epsilon": 1e-12, "shared_expert": 80},
    "qwen3_next": {"renormalize": True, "shared_expert": 96, "shared_gate": True, "experts": 20},
    "granite": {"scores": "chosen", "shared_expert": 64, "residual_multiplier": 0.22},
    "gemma4": {
        "renormalize": True, "router_multiplier": 72**-0.5, "expert_scales": True, "shared_expert": 130,
        "feed_forward_after": True, "activation": Activation("gelu_tanh"),
    },
    "norms without a multiplier": {"scores": "sigmoid", "router_multiplier": 1.0, "shared_expert": 31, "used": 1},
    "as many groups as experts": {"groups": (8, 5, 2), "scores": "chosen", "expert_scales": True, "used": 5},
}  # fmt: skip


@pytest.mark.parametrize("name", MIXTURES)
def test_mixtures_are_the_native_engines(device: Device, name: str) -> None:
    native, engine = both(make_spec(**{**SMALL, **MIXTURES[name]}), device, "sym_int4")
    tokens = ids_of(native, 60)
    expected = run(native, native.new_cache(), tokens).tobytes()
    for pieces in ([60], [1, 3, 20]):
        assert in_pieces(engine, tokens, pieces).tobytes() == expected, pieces


@pytest.mark.parametrize("name", ["deepseek_v3", "qwen3_next", "gemma4"])
def test_formats_that_differ_in_a_mixture(device: Device, name: str) -> None:
    """A router and a gate, a shared expert's matrices and the experts' in formats of their own; all come back."""
    formats = {"shared_gate": "bf16", "shared.up": "sym_int8", "shared.down": "fp16", "experts.1.": "sym_int8"}
    native, engine = both(
        make_spec(**{**SMALL, "bias": "gudr", **MIXTURES[name]}),
        device,
        lambda tensor: next((low_bit for part, low_bit in formats.items() if part in tensor.name), "sym_int4"),
    )
    tokens = ids_of(native, 30)
    expected = run(native, native.new_cache(), tokens).tobytes()
    for pieces in ([30], [1, 5]):
        assert in_pieces(engine, tokens, pieces).tobytes() == expected, pieces
    for (key, one), (other_key, other) in zip(sorted_weights(engine), sorted_weights(native), strict=True):
        assert key == other_key
        assert [(n, a.tobytes()) for n, a in one.arrays()] == [(n, a.tobytes()) for n, a in other.arrays()], key


@pytest.mark.parametrize("sizes", [(8, 3), (5, 5), (40, 2)], ids=str)
def test_rows_grouped_by_expert(device: Device, sizes: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """At every number of rows where another kernel begins to read the experts' weights."""
    experts, used = sizes
    spec = make_spec(**{**SMALL, "layers": 1, "experts": experts, "used": used, "intermediate": 80})
    native, engine = both(spec, device, "sym_int4")
    few, many = thresholds(spec.mixtures[0])
    tokens = ids_of(native, many + 1)
    launched: list[str] = []
    launch = device.launch

    def noted(queue: Any, kernel: Any, *of: Any) -> Any:
        launched.append(kernel.function_name)
        return launch(queue, kernel, *of)

    monkeypatch.setattr(device, "recorder", None)
    monkeypatch.setattr(device, "launch", noted)
    for rows in (few - 1, few, many - 1, many, many + 1):
        launched.clear()
        expected = run(native, native.new_cache(), tokens[:rows]).tobytes()
        assert run(engine, engine.new_cache(), tokens[:rows]).tobytes() == expected, rows
        assert ("grouped_linear" in launched) == (rows >= few), rows
        assert ("expert_linear" in launched) == (rows < few), rows


def test_groups_of_pairs(device: Device) -> None:
    """Each pair is in one group of its expert, and groups that are left over have no expert."""
    i32, rng = np.int32, np.random.default_rng(1)
    for rows, used, of in ((1, 1, 1), (40, 3, 8), (60, 2, 700), (33, 4, 4)):
        chosen = np.array([rng.choice(of, used, replace=False) for _ in range(rows)], i32)
        groups = -(-rows // 16) * used + of
        members, owners = device.empty(4 * 16 * groups), device.empty(4 * groups)
        experts, step = device.upload(np.concatenate([[0, 0], chosen.ravel()]).astype(i32)), device.upload(i32([rows]))
        arguments = (experts, i32(2), i32(used), i32(of), members, owners, i32(groups), step)
        device.enqueue_plain(device.kernel(device.program("experts"), "group_pairs", *arguments), (256,), (256,))
        found = device.read(members, (groups, 16), i32), device.read(owners, (groups,), i32)
        pairs = [(int(pair), int(owner)) for group, owner in zip(*found, strict=True) if owner >= 0 for pair in group]
        pairs = [one for one in pairs if one[0] >= 0]
        assert sorted(pairs) == list(enumerate(chosen.ravel().tolist()))


def chosen_by(
    device: Device, logits: npt.NDArray[np.float32], correction: Any, used: int, scores: str, groups: tuple[int, ...]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """The experts of rows and their weights, by the kernel alone; they are renormalized."""
    rows, of = logits.shape
    i32, f32 = np.int32, np.float32
    experts, weights = device.empty(4 * rows * used), device.empty(4 * rows * used)
    scratch, step = device.empty(4 * rows * (of + groups[0])), device.upload(np.array([rows], i32))
    correction = None if correction is None else device.upload(correction)
    choice = (device.upload(logits), i32(of), i32(of), i32(used), i32(SCORES.index(scores)), correction)
    factors = (i32(True), f32(0), f32(1), None)
    arguments = (*choice, *map(i32, groups), *factors, scratch, experts, i32(0), weights, step)
    kernel = device.kernel(device.program("experts"), "choose", *arguments)
    device.enqueue(kernel, 1, rows)
    return device.read(experts, (rows, used), i32), device.read(weights, (rows, used), f32)


def expected_choice(by: npt.NDArray[np.float32], used: int, groups: int, groups_used: int, best: int) -> list[int]:
    """As the core chooses: first the best groups, then the best experts; a later one replaces only a smaller one."""

    def worth(group: npt.NDArray[np.float32]) -> np.float32:
        numbers = sorted((v for v in group if not np.isnan(v)), reverse=True)
        numbers += [np.float32(-np.inf)] * 2
        return numbers[0] if len(group) == 1 or best == 1 else numbers[0] + numbers[1]

    parts = np.split(by.copy(), groups)
    worths = [worth(group) for group in parts]
    for i, own in enumerate(worths):
        better = sum(other > own or (other == own and j < i) for j, other in enumerate(worths))
        if better >= groups_used:
            parts[i][:] = -np.inf
    by, taken = np.concatenate(parts), []
    for _ in range(used):
        top = -1
        for e, value in enumerate(by):
            if e not in taken and (top < 0 or value > by[top]):
                top = e
        taken.append(top)
    return taken


@pytest.mark.parametrize("scores", SCORES)
@pytest.mark.parametrize("groups", [(1, 1, 2), (4, 2, 2), (8, 3, 1), (40, 25, 2)], ids=str)
def test_the_choice_of_experts(device: Device, scores: str, groups: tuple[int, int, int]) -> None:
    """Ties go to the lowest index, and values that are not finite do what they do in the core."""
    rng = np.random.default_rng(groups[0])
    logits = (rng.integers(-6, 7, (64, 40)) / 2).astype(np.float32)
    correction = (rng.integers(-2, 3, 40) / 4).astype(np.float32)
    others = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, -np.nan], np.float32)
    for row in range(16, 64):
        where = rng.choice(40, row % 16 + 1, replace=False)
        logits[row, where] = rng.choice(others[: 2 + row % 5], len(where))
    logits[63] = np.nan
    for by in (correction, None):
        got, weights = chosen_by(device, logits, by, 8, scores, groups)
        with np.errstate(invalid="ignore", over="ignore"):
            wanted = 1 / (1 + np.exp(-logits)) if scores == "sigmoid" else logits
            if scores == "all" and by is not None:
                shares = np.exp(logits - logits.max(1, keepdims=True))
                wanted = shares / shares.sum(1, keepdims=True)
            wanted = wanted + (0 if by is None else by)
            expected = [expected_choice(row, 8, *groups) for row in wanted.astype(np.float32)]
        assert got.tolist() == expected
        assert (np.isfinite(weights[:16]).all(1) & (abs(weights[:16].sum(1) - 1) < 1e-6)).all()
        assert np.isnan(weights[~np.isfinite(np.take_along_axis(logits, got, 1))]).all()


def test_a_router_whose_logits_are_not_finite(device: Device) -> None:
    """An expert with such logits is passed over, or the step fails, as on the CPU."""
    spec = make_spec(**{**SMALL, **MIXTURES["deepseek_v3"], "layers": 1})
    router = spec.mixtures[0].router.weight.name
    for expert, value in ((5, 3e38), (0, 3e38), (5, -3e38), (0, 0.0)):
        weights = random_weights(spec)
        weights[router][expert] = value
        weights[router][expert, ::2] *= -1
        engines = native_engine(spec, weights), OpenClEngine.build(spec, "fp32", reader(weights), device)
        outcomes = []
        for engine in engines:
            try:
                outcomes.append(run(engine, engine.new_cache(), ids_of(engine, 9)).tobytes())
            except NonFiniteError:
                outcomes.append(b"")
        assert outcomes[0] == outcomes[1], (expert, value)
