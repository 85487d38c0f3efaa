"""Two bits, symmetric: w = scale * (code - 2) for 32 inputs."""

from __future__ import annotations

from ipex_lookahead.formats.codebooks import CRUMBS, table_format

FORMAT = table_format("sym_int2", range(-2, 2), -2, CRUMBS, width=0.15, tries=9, zero=2)
