"""Three bits, symmetric: w = scale * (code - 4) for 32 inputs."""

from __future__ import annotations

from ipex_lookahead.formats.blocks import Plane
from ipex_lookahead.formats.codebooks import CRUMBS, table_format

FORMAT = table_format("sym_int3", range(-4, 4), -4, CRUMBS, Plane("third", 1, 1, up=2), width=0.15, tries=9, zero=4)
