"""Model families: rows of ``dense.py``, ``mixtures.py`` and ``vision.py``, and one file per family that needs code.

``text_encoders.py`` has the rows of text encoders, which are not decoders and are listed separately.

A file is named after the ``model_type`` in config.json. Every module here is a family or a table of families; code that
families share is in ``architectures/``.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping
from typing import cast

from ipex_lookahead.architectures.keys import Family
from ipex_lookahead.architectures.text_encoder import TextEncoder

_TABLES = ("dense", "mixtures", "vision")
"""Modules with a mapping ``FAMILIES`` instead of a family."""
_ENCODERS = "text_encoders"


@functools.cache
def names() -> frozenset[str]:
    """Return every ``model_type`` with a row or a file."""
    files = {module.name for module in pkgutil.iter_modules(__path__)}
    return frozenset({*_rows(), *files.difference(_TABLES, (_ENCODERS,))})


def find(model_type: str) -> Family:
    """Return the family of one of :func:`names`."""
    return _rows().get(model_type) or cast(Family, importlib.import_module(f"{__name__}.{model_type}"))


@functools.cache
def encoders() -> Mapping[str, TextEncoder]:
    """Return the families of text encoders by name."""
    rows: Mapping[str, TextEncoder] = importlib.import_module(f"{__name__}.{_ENCODERS}").FAMILIES
    return rows


@functools.cache
def _rows() -> Mapping[str, Family]:
    tables = (importlib.import_module(f"{__name__}.{table}").FAMILIES for table in _TABLES)
    return {model_type: row for table in tables for model_type, row in table.items()}
