"""Recommended models with short names such as ``qwen3-4b``, and their sizes, from ``recommended.yaml``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ipex_lookahead.errors import InputError
from ipex_lookahead.files.safe_yaml import load_yaml

FILE = Path(__file__).with_name("recommended.yaml")
PROGRAM_BYTES = 300_000_000
"""Memory in addition to weights, keys and values (docs/which_model.md)."""
POSITIONS = 4096
"""Context length for which the required memory is given."""


@dataclass(frozen=True, slots=True)
class Recommended:
    """A recommended model; ``recommended.yaml`` documents the fields. Sizes are in bytes."""

    name: str
    model: str
    family: str
    license: str
    parameters: int
    download: int
    read: int
    position: int
    thinks: bool = False
    draft: str | None = None
    drafter: str | None = None

    @property
    def bits(self) -> float:
        """Bits per weight in the file."""
        return 8 * self.download / self.parameters

    @property
    def memory(self) -> int:
        """Required memory in bytes with a context of ``POSITIONS``."""
        return self.download + POSITIONS * self.position + PROGRAM_BYTES


def recommended_models() -> dict[str, Recommended]:
    """Return the recommended models by short name, from small to large."""
    found = load_yaml(FILE, error=InputError)
    return {name: Recommended(name, **facts) for name, facts in found.items()}
