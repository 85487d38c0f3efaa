"""What the package of families holds: families and tables of families, and nothing else."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

from ipex_lookahead.architectures import HEADS, families, model_types
from ipex_lookahead.architectures.keys import ConfigKeys

ENCODERS = "text_encoders"
MODULES = [module.name for module in pkgutil.iter_modules(families.__path__) if module.name != ENCODERS]


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_a_family_or_a_table(name: str) -> None:
    """A helper there would be advertised as a family."""
    module = importlib.import_module(f"{families.__name__}.{name}")
    rows = getattr(module, "FAMILIES", {}) if name in ("dense", "mixtures", "vision") else {name: module}
    assert rows
    for model_type, row in rows.items():
        assert model_type in model_types() or model_type in HEADS
        assert families.find(model_type) is row
        assert isinstance(row.KEYS, ConfigKeys)
        assert callable(row.spec)
        assert str(getattr(row, "about", row.__doc__)).strip()


def test_text_encoders_are_rows_of_one_table() -> None:
    rows = importlib.import_module(f"{families.__name__}.{ENCODERS}").FAMILIES
    assert rows == families.encoders()
    assert not families.names() & {ENCODERS, *rows}, "a decoder and an encoder of one name"
    for row in rows.values():
        assert isinstance(row.KEYS, ConfigKeys)
        assert callable(row.spec)
        assert row.about.strip()
