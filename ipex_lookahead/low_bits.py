"""The names of the low-bit formats, without their rooms' imports: ``--help`` and completion must not wait for numpy.

``NAME`` is the file ``formats/NAME.py``; nothing else lists formats.
"""

from __future__ import annotations

LOW_BITS = {
    "sym_int4": "4 bits, codes around zero",
    "asym_int4": "4 bits, with a smallest value for each group",
    "sym_int8": "8 bits",
    "fp16": "16 bits, of which 10 are mantissa",
    "bf16": "16 bits, with float32's range",
    "fp32": "32 bits, as most checkpoints were trained",
}
"""Low-bit format -> what it is."""
