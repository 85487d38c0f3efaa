"""Models that are recommended: short names such as ``qwen3-4b``, and what each takes. ``recommended.yaml`` has them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ipex_lookahead.errors import InputError
from ipex_lookahead.files.safe_yaml import load_yaml

FILE = Path(__file__).with_name("recommended.yaml")
PROGRAM_BYTES = 300_000_000
"""Memory beside weights, keys and values (docs/which_model.md)."""
POSITIONS = 4096
"""Of the context, for which the memory is given."""


@dataclass(frozen=True, slots=True)
class Recommended:
    """A model that is recommended; ``recommended.yaml`` says what each field means, sizes in bytes."""

    name: str
    model: str
    family: str
    licence: str
    parameters: int
    download: int
    read: int
    position: int
    thinks: bool = False
    draft: str | None = None
    drafter: str | None = None

    @property
    def bits(self) -> float:
        """Bits a weight takes in the file."""
        return 8 * self.download / self.parameters

    @property
    def memory(self) -> int:
        """Bytes that it needs with ``POSITIONS`` positions of context."""
        return self.download + POSITIONS * self.position + PROGRAM_BYTES


def recommended_models() -> dict[str, Recommended]:
    """Short name -> model, from small to large."""
    found = load_yaml(FILE, error=InputError)
    return {name: Recommended(name, **facts) for name, facts in found.items()}
