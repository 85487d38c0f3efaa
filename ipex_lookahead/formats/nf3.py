"""Three bits that count eight quantiles of a normal distribution, as ``nf4`` does: w = scale * table[code].

A block is 32 inputs. The table is ipex-llm's, made as ``nf4``'s: its CPU library holds no table of nf3, but thresholds
half-way between its numbers (``tests/ipex_llm``), which say them to a unit in the last place.
"""

from __future__ import annotations

from ipex_lookahead.formats.blocks import Plane
from ipex_lookahead.formats.codebooks import CRUMBS, table_format

TABLE = (-1.0, -0.4786292016506195, -0.2171417921781540, 0.0, 0.16093020141124725, 0.33791524171829224,
         0.5626170039176941, 1.0)  # fmt: skip

FORMAT = table_format("nf3", TABLE, -1.0, CRUMBS, Plane("third", 1, 1, up=2), width=0.04, tries=7)
