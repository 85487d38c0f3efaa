from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers.generation import logits_process as hf

from ipex_lookahead.decoding.sampling import (
    ALL_FORBIDDEN,
    BAD_LOGITS,
    Implementation,
    Sampler,
    WarperParams,
    fastest_implementation,
    greedy,
    gumbel,
    philox4x32,
    sample_reference,
)
from ipex_lookahead.errors import EngineError, InputError
from ipex_lookahead.system.compat import MinPLogitsWarper

INFINITY = np.float32(np.inf)


@pytest.fixture(scope="module")
def native() -> Implementation:
    implementation = fastest_implementation()
    if implementation is sample_reference:
        pytest.skip("the native core is not built: the numpy sampler stands alone")
    return implementation


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((0xFFFFFFFF,) * 4, 2**64 - 1, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            0x299F31D0_A4093822,
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_gives_the_published_vectors(counter: tuple[int, ...], key: int, expected: str) -> None:
    """Known answers of Random123 for philox4x32 with 10 rounds."""
    words = philox4x32(np.array(counter, np.uint64)[:, None], key)
    assert " ".join(f"{int(w):08x}" for w in words[:, 0]) == expected


def test_noise_is_gumbel_distributed() -> None:
    noise = np.concatenate([gumbel(np.arange(5000), 7, 0, position) for position in range(8)])
    assert abs(noise.mean() - np.euler_gamma) < 0.03
    assert abs(noise.var() - np.pi**2 / 6) < 0.06
    # Kolmogorov-Smirnov against exp(-exp(-x)); 1.95 / sqrt(n) is passed by chance once in a thousand.
    ordered = np.sort(noise)
    distance = np.abs(np.exp(-np.exp(-ordered)) - (np.arange(ordered.size) + 0.5) / ordered.size).max()
    assert distance < 1.95 / np.sqrt(ordered.size)


def cases(count: int, seed: int) -> list[tuple[npt.NDArray[np.float32], tuple[float, ...]]]:
    """Logits of many kinds (ties, forbidden tokens, one token left, not finite) with parameters at their edges."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        size = int(rng.choice([1, 2, 3, 5, 15, 16, 17, 63, 64, 65, 130, 1000, 3001]))
        logits = (rng.standard_normal(size) * rng.choice([0.1, 1, 5, 30])).astype(np.float32)
        kind = rng.integers(7)
        if kind == 1:
            logits = np.round(logits)
        elif kind == 2:
            logits[:] = logits[0]
        elif kind == 3:
            logits[rng.random(size) < 0.7] = -INFINITY
        elif kind == 4:
            logits[:] = -INFINITY
            logits[rng.integers(size)] = rng.standard_normal()
        elif kind == 5 and rng.random() < 0.3:
            logits[rng.integers(size)] = rng.choice([np.nan, INFINITY])
        elif kind == 6:
            logits.sort()
        params = (
            float(rng.choice([1e-320, 0.01, 0.3, 0.7, 1, 1.5, 100, 1e30])),
            int(rng.choice([0, 0, 1, 2, 5, 50, size, size + 1])),
            float(rng.choice([1, 1, 0, 0.1, 0.5, 0.9, 0.999999])),
            float(rng.choice([0, 0, 0.01, 0.1, 0.5, 1])),
            int(rng.integers(0, 2**64, dtype=np.uint64)),
            int(rng.integers(2**32)),
            int(rng.integers(2**32)),
        )
        made.append((logits, params))
    return made


def test_native_draws_the_tokens_of_the_definition(native: Implementation) -> None:
    for logits, params in cases(3000, 0):
        assert native(logits, *params) == sample_reference(logits, *params), (logits.size, params)


@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 8.0])
def test_native_draws_the_tokens_of_the_definition_for_a_large_vocabulary(
    native: Implementation, spread: float
) -> None:
    logits = (np.random.default_rng(3).standard_normal(49152) * spread).astype(np.float32)
    nuclei = [(1, 0, 0.9, 0), (0.8, 0, 0.95, 0.01), (0.5, 0, 0.5, 0), (2.5, 0, 0.999, 0), (40, 0, 0.7, 0)]
    for params in [(1, 0, 1, 0), (0.7, 50, 1, 0), (0.7, 50, 0.9, 0), (1.3, 0, 1, 0.05), *nuclei]:
        for position in range(4):
            drawn = native(
                logits, *map(float, params[:1]), params[1], float(params[2]), float(params[3]), 5, 1, position
            )
            assert drawn == sample_reference(logits, *params, 5, 1, position)


def test_a_nucleus_that_ends_where_rounding_decides(native: Implementation) -> None:
    """Equal masses whose sum meets top_p exactly or nearly, and few tokens far above very many."""
    level = np.zeros(4096, np.float32)
    peaked = np.full(4096, -12, np.float32)
    peaked[[7, 4000, 100]] = [0, 0, -1]
    for logits in (level, peaked, peaked[:1001]):
        for part in (0.25, 0.5, 0.75, 1024 / 4096 + 1e-12, 0.9, 0.99, 1 - 1e-9):
            for position in range(3):
                arguments = (1.0, 0, part, 0.0, 3, 0, position)
                assert native(logits, *arguments) == sample_reference(logits, *arguments), (part, position)


def warped(logits: npt.NDArray[np.float32], params: WarperParams) -> npt.NDArray[np.float64]:
    """Probabilities by transformers' warpers."""
    scores = torch.from_numpy(logits)[None].double()
    ids = torch.zeros((1, 1), dtype=torch.int64)
    if params.temperature != 1:
        scores = hf.TemperatureLogitsWarper(params.temperature)(ids, scores)
    if params.top_k:
        scores = hf.TopKLogitsWarper(params.top_k)(ids, scores)
    if params.top_p < 1:
        scores = hf.TopPLogitsWarper(params.top_p)(ids, scores)
    if params.min_p:
        scores = MinPLogitsWarper(params.min_p)(ids, scores)
    return scores.softmax(-1)[0].numpy()


@pytest.mark.parametrize(
    "params",
    [
        WarperParams(),
        WarperParams(temperature=0.5),
        WarperParams(top_k=5),
        WarperParams(top_p=0.8),
        WarperParams(min_p=0.1),
        WarperParams(0.7, 8, 0.9, 0.02),
        WarperParams(2.0, 3, 0.5),
    ],
)
def test_distribution_is_the_processed_softmax(params: WarperParams) -> None:
    """Chi-square with the transformers warpers as the expectation; tokens they exclude are never drawn."""
    logits = np.random.default_rng(11).standard_normal(12).astype(np.float32) * 2
    expected = warped(logits, params)
    draws = 20000
    sampler = Sampler(params, seed=2024, sequence=0)
    counts = np.bincount([sampler(logits, position) for position in range(draws)], minlength=12)
    inside = expected > 0
    assert counts[~inside].sum() == 0
    statistic = (((counts - draws * expected) ** 2)[inside] / (draws * expected[inside])).sum()
    freedom = inside.sum() - 1
    # Wilson and Hilferty's approximation of the quantile at 4 standard deviations (3 in 100,000); fixed seed.
    limit = freedom * (1 - 2 / (9 * freedom) + 4 * np.sqrt(2 / (9 * freedom))) ** 3 if freedom else 0
    assert statistic <= limit


def test_positions_sequences_and_seeds_draw_independently() -> None:
    logits = np.zeros(50, np.float32)

    def draws(seed: int, sequence: int) -> list[int]:
        sampler = Sampler(WarperParams(), seed, sequence)
        return [sampler(logits, position) for position in range(400)]

    base = draws(1, 0)
    assert base == draws(1, 0)
    assert len(set(base)) > 40
    for other in (draws(2, 0), draws(1, 1), draws(1 + 2**32, 0), base[1:]):
        same = sum(a == b for a, b in zip(base, other, strict=False))
        assert same < 30  # 8 expected


@pytest.mark.parametrize("implementation", [sample_reference, fastest_implementation()])
def test_logits_that_are_no_distribution(implementation: Implementation) -> None:
    def answer(*values: float) -> int:
        return implementation(np.array(values, np.float32), 1.0, 0, 1.0, 0.0, 0, 0, 0)

    assert answer(1, np.nan, 2) == BAD_LOGITS
    assert answer(1, np.inf, 2) == BAD_LOGITS
    assert answer(-np.inf, -np.inf) == ALL_FORBIDDEN
    assert answer(-np.inf, 3, -np.inf) == 1


def test_errors_say_what_to_do() -> None:
    sampler = Sampler(WarperParams(), 0, 0)
    with pytest.raises(EngineError, match="NaN or infinity"):
        sampler(np.array([0, np.nan], np.float32), 0)
    with pytest.raises(InputError, match="forbid every token"):
        sampler(np.full(4, -INFINITY), 0)
    with pytest.raises(EngineError, match="NaN or infinity"):
        greedy(np.array([0, np.nan], np.float32))
    with pytest.raises(InputError, match="forbid every token"):
        greedy(np.full(4, -INFINITY))


def test_greedy_takes_the_lowest_id_of_a_tie() -> None:
    assert greedy(np.array([1, 3, 2, 3], np.float32)) == 1
