"""How kernels read each weight format: the names that ``kernels/tiles.cl`` is built with (csrc/kernels/formats.h)."""

from __future__ import annotations

from dataclasses import dataclass

CODES = ("FLOATS", "BYTES", "NIBBLES", "NIBBLES5", "NIBBLES6", "CRUMBS", "CRUMBS3", "E2M1", "IQ4")
SCALES = (
    "GROUP_SCALE", "GROUP_SCALE_AND_MINIMUM", "GROUP_SCALE_AND_ZERO", "HALVED_GROUP_SCALE", "FLOAT_SCALE",
    "EXPONENT_SCALE", "STEP_SCALE", "STEP_SCALE_AND_MINIMUM", "HALF_STEPS",
    "HALF_STEPS6", "HALF_STEPS_AND_MINIMUMS",
)  # fmt: skip
FLOAT_KINDS = ("FP32", "FP16", "BF16")
TABLES = ("NF4", "NF3", "BNB_FP4")


@dataclass(frozen=True, slots=True)
class KernelFormat:
    """What a format's kernels are made of.

    Attributes:
        codes: of ``CODES``, how a tile holds its codes.
        scales: of ``SCALES``, where its scales come from.
        zero: the code that stands for 0, where products are of whole numbers; None: activations stay floats.
        float_kind: of ``FLOAT_KINDS``, where the codes are the values.
        table: of ``TABLES``, the floats that codes count.
        minifloat: (bits of exponent and mantissa, how far up they belong in a float32, power of two that makes up for
            the exponent's bias).
    """

    codes: str
    scales: str = "GROUP_SCALE"
    zero: int | None = None
    float_kind: str | None = None
    table: str | None = None
    minifloat: tuple[int, int, int] | None = None

    def defines(self) -> list[str]:
        """Options of the compiler."""
        chosen = {"CODES": self.codes, "SCALES": self.scales}
        if self.zero is not None:
            chosen |= {"INTEGERS": "1", "ZERO": str(self.zero)}
        if self.float_kind is not None:
            chosen["FLOAT_KIND"] = self.float_kind
        if self.table is not None:
            chosen["TABLE"] = self.table
        if self.minifloat is not None:
            chosen |= dict(zip(("MAGNITUDE", "MAGNITUDE_SHIFT", "POWER"), map(str, self.minifloat), strict=True))
        return [f"-D{name}={value}" for name, value in chosen.items()]


NAMES = [f"-D{name}={number}" for names in (CODES, SCALES, FLOAT_KINDS, TABLES) for number, name in enumerate(names)]

KERNEL_FORMATS = {
    "fp32": KernelFormat("FLOATS", float_kind="FP32"),
    "fp16": KernelFormat("FLOATS", float_kind="FP16"),
    "bf16": KernelFormat("FLOATS", float_kind="BF16"),
    "sym_int8": KernelFormat("BYTES", zero=128),
    "sym_int4": KernelFormat("NIBBLES", zero=8),
    "asym_int4": KernelFormat("NIBBLES", "GROUP_SCALE_AND_MINIMUM", 0),
    "mxfp4": KernelFormat("E2M1", "EXPONENT_SCALE", 16),
    "q2_k": KernelFormat("CRUMBS", "HALF_STEPS_AND_MINIMUMS", 0),
    "q3_k": KernelFormat("CRUMBS3", "HALF_STEPS6", 4),
    "q4_k": KernelFormat("NIBBLES", "STEP_SCALE_AND_MINIMUM", 0),
    "q5_k": KernelFormat("NIBBLES5", "STEP_SCALE_AND_MINIMUM", 0),
    "q6_k": KernelFormat("NIBBLES6", "HALF_STEPS", 32),
    "sym_int5": KernelFormat("NIBBLES5", zero=16),
    "asym_int5": KernelFormat("NIBBLES5", "GROUP_SCALE_AND_MINIMUM", 0),
    "iq4_nl": KernelFormat("IQ4", zero=128),
    "iq4_xs": KernelFormat("IQ4", "STEP_SCALE", 128),
    "sym_int3": KernelFormat("CRUMBS3", zero=4),
    "sym_int2": KernelFormat("CRUMBS", zero=2),
    "fp4": KernelFormat("E2M1", "HALVED_GROUP_SCALE", 16),
    "nf4": KernelFormat("NIBBLES", table="NF4"),
    "nf3": KernelFormat("CRUMBS3", table="NF3"),
    "fp6": KernelFormat("NIBBLES6", minifloat=(5, 21, 112)),
    "fp8_e4m3": KernelFormat("BYTES", minifloat=(7, 20, 120)),
    "fp8_e5m2": KernelFormat("BYTES", minifloat=(7, 21, 112)),
    "zero_int4": KernelFormat("NIBBLES", "GROUP_SCALE_AND_ZERO", 0),
    "zero_int8": KernelFormat("BYTES", "GROUP_SCALE_AND_ZERO", 128),
    "bnb_nf4": KernelFormat("NIBBLES", "FLOAT_SCALE", table="NF4"),
    "bnb_fp4": KernelFormat("NIBBLES", "FLOAT_SCALE", table="BNB_FP4"),
    "sym_int8_fp32": KernelFormat("BYTES", "FLOAT_SCALE", 128),
    "fp8_e4m3_fp32": KernelFormat("BYTES", "FLOAT_SCALE", minifloat=(7, 20, 112)),
}
"""Every format of ``FORMATS``."""
