"""EAGLE-3's description: which hidden states are meant, and which tokens outputs may be."""

from __future__ import annotations

import numpy as np
import pytest

from ipex_lookahead.architectures.eagle3 import default_states, wrong_id
from ipex_lookahead.errors import UnsupportedModelError


@pytest.mark.parametrize(("layers", "states"), [(32, (2, 16, 29)), (36, (2, 18, 33)), (5, (2, 2, 2)), (4, (1, 2, 2))])
def test_the_states_that_are_usual(layers: int, states: tuple[int, ...]) -> None:
    """Llama-3.1-8B's heads read 2, 16 and 29, those of Qwen3-8B 2, 18 and 33."""
    assert default_states(layers) == states


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_a_target_with_too_few_layers(layers: int) -> None:
    with pytest.raises(UnsupportedModelError, match=f"number of layers is {layers}"):
        default_states(layers)


def test_outputs_are_tokens_each_of_its_own() -> None:
    assert wrong_id(np.array([3, 9, 4]), 10) is None
    assert wrong_id(np.array([3, 10, -1]), 10) == (1, "maps output 1 to token 10; the vocabulary has 10")
    assert wrong_id(np.array([3, 9, 3]), 10) == (2, "maps output 2 to token 3, which is already mapped to output 0")
