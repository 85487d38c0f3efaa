"""Model families: rows of ``dense.py``, ``mixtures.py`` and ``vision.py``, and one file per family that needs code.

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

_TABLES = ("dense", "mixtures", "vision")
"""Modules with a mapping ``FAMILIES`` instead of a family."""


@functools.cache
def names() -> frozenset[str]:
    """Return every ``model_type`` with a row or a file."""
    files = {module.name for module in pkgutil.iter_modules(__path__)}
    return frozenset({*_rows(), *files.difference(_TABLES)})


def find(model_type: str) -> Family:
    """Return the family of one of :func:`names`."""
    return _rows().get(model_type) or cast(Family, importlib.import_module(f"{__name__}.{model_type}"))


@functools.cache
def _rows() -> Mapping[str, Family]:
    tables = (importlib.import_module(f"{__name__}.{table}").FAMILIES for table in _TABLES)
    return {model_type: row for table in tables for model_type, row in table.items()}
