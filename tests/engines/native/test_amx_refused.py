"""A system that does not permit the tile registers: the next instruction set is taken, and forcing AMX says why not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.programs

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

# seccomp: arch_prctl(ARCH_REQ_XCOMP_PERM) fails with EPERM from here on; every other call is as it was.
FORBIDDEN = """
import ctypes, struct
call, not_it, argument, not_this = (0x20, 0, 0, 0), (0x15, 0, 3, 158), (0x20, 0, 0, 16), (0x15, 0, 1, 0x1023)
refuse, allow = (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7FFF0000)
rules = [call, not_it, argument, not_this, refuse, allow]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
program = struct.pack("HxxxxxxQ", len(rules), ctypes.addressof(code))
prctl = ctypes.CDLL(None, use_errno=True).prctl
assert prctl(38, 1, 0, 0, 0) == 0, "no_new_privs"
assert prctl(22, 2, ctypes.c_char_p(program), 0, 0) == 0, "seccomp"
from ipex_lookahead.engines.native.core import amx_state, available_isas, chosen_isa
from ipex_lookahead.engines.native.linear import LinearPool
from ipex_lookahead.errors import LookaheadError
print(amx_state())
print(available_isas())
try:
    print(LinearPool(1).isa)
except (LookaheadError, ValueError) as error:
    print(type(error).__name__, error)
"""


def said(**environment: str) -> list[str]:
    ran = subprocess.run(
        [sys.executable, "-c", FORBIDDEN],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=120,
    )
    if "AssertionError: seccomp" in ran.stderr:
        pytest.skip("this system lets no process filter its own calls")
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def test_without_permission_the_next_instruction_set_is_taken_and_amx_cannot_be_forced() -> None:
    state, available, isa = said(IPEX_LOOKAHEAD_ISA="")
    assert state in (
        "the system does not permit its tile registers (Operation not permitted)",
        "the processor does not have it",
        "the system does not save its tile registers",
        "the compiler of this build does not have it",
    )
    assert "amx_int8" not in available
    assert isa != "amx_int8"
    *_, forced = said(IPEX_LOOKAHEAD_ISA="amx_int8")
    assert forced.startswith("EngineError ")
    assert "'amx_int8' is not " in forced
    assert "available: " in forced
