"""``make test-opencl-offline``: what it reads from binaries, what it calls worse, and where it fetches the compiler."""

from __future__ import annotations

import importlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
ZE_INFO = """---
version:         '1.73'
kernels:
  - name:            linear
    execution_env:
      grf_count:       128
      simd_size:       16
      slm_size:        64
      private_size:    5120
      spill_size:      6336
    payload_arguments:
      - arg_type:        arg_byvalue
        size:            4
  - name:            old
    execution_env:
      grf_count:       256
      simd_size:       8
    per_thread_memory_buffers:
      - type:            scratch
        usage:           spill_fill_space
        size:            512
kernels_misc_info:
  - name:            linear
    args_info:
      - index:           0
        name:            codes
...
"""


@pytest.fixture(scope="module")
def scripts() -> Any:
    """Imports a script by name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts"))
        yield importlib.import_module


def elf(parts: dict[str, bytes]) -> bytes:
    """An ELF file of 64 bits with those sections."""
    parts = {"": b"", **parts, ".strtab": b""}
    names = b"\0".join(name.encode() for name in parts) + b"\0"
    parts[".strtab"] = names
    body, heads = b"", b""
    for name, content in parts.items():
        heads += struct.pack(
            "<IIQQQQIIQQ", names.index(name.encode() + b"\0"), 1, 0, 0, 64 + len(body), len(content), 0, 0, 0, 0
        )
        body += content
    head = bytearray(64)
    head[:5] = b"\x7fELF\x02"
    struct.pack_into("<Q", head, 0x28, 64 + len(body))
    struct.pack_into("<HH", head, 0x3C, len(parts), len(parts) - 1)
    return bytes(head) + body + heads


def spirv(*instructions: tuple[int, ...]) -> bytes:
    words = [0x07230203, 0x10400, 0, 100, 0]
    for code, *operands in instructions:
        words += [(len(operands) + 1) << 16 | code, *operands]
    return struct.pack(f"<{len(words)}I", *words)


NAME = struct.unpack("<I", b"dot\0")[0]
ENTRY, HELPER = (15, 6, 1, NAME), (54, 9, 2, 0, 8)
OFF = (16, 1, 31)
CALLS = ((54, 9, 1, 0, 8), (57, 9, 5, 2), (133, 9, 6, 1, 1), (56,))
ADDS = (HELPER, (129, 9, 7, 1, 1), (56,))


def test_what_a_binary_says_of_its_kernels(scripts: Any) -> None:
    binaries = scripts("opencl_binaries")
    found = binaries.kernels(elf({".text.linear": b"\1\2", ".ze_info": ZE_INFO.encode()}))
    assert found == {"linear": [16, 128, 64, 6336, 5120], "old": [8, 256, 0, 512, 0]}
    for wrong in (b"", b"\x7fELF\x01", elf({".text": b""}), elf({".ze_info": b"---\n"})):
        with pytest.raises(binaries.BadBinaryError):
            binaries.kernels(wrong)


def test_the_binaries_of_several_devices(scripts: Any) -> None:
    members = {"pad_0": b"..", "64.bmg": b"first", "64.dg2": b"second"}
    archive = b"!<arch>\n"
    for name, content in members.items():
        archive += f"{name}/".ljust(48).encode() + str(len(content)).ljust(10).encode() + b"`\n" + content
        archive += b"\n" * (len(content) % 2)
    assert scripts("opencl_binaries").members(archive) == {"bmg": b"first", "dg2": b"second"}


def test_binaries_are_found_by_the_name_or_the_number_of_their_device(scripts: Any, tmp_path: Path) -> None:
    offline = scripts("opencl_offline")

    class Compiler:
        def run(self, *words: str, folder: str) -> tuple[int, str]:
            Path(folder, "out").mkdir(exist_ok=True)
            if "tgl" in words:
                Path(folder, "out", "program_tgllp.bin").write_bytes(b"alone")
                return 0, "Build succeeded."
            archive = b"!<arch>\n"
            for name, content in {"64.ptl": b"first!", "64.12.0.0": b"second"}.items():
                archive += f"{name + '/':48}{len(content):<10}`\n".encode() + content
            Path(folder, "out", "program.ar").write_bytes(archive)
            return 0, ""

        def version(self, device: str, folder: str) -> str:
            return {"ptl": "30.0.4", "tgl": "12.0.0"}[device]

    made = offline.built(Compiler(), "", "", ["ptl", "tgl"], str(tmp_path))
    assert made == {"ptl": b"first!", "tgl": b"second"}
    assert offline.built(Compiler(), "", "", ["tgl"], str(tmp_path)) == {"tgl": b"alone"}


def test_what_would_change_bits_is_found(scripts: Any) -> None:
    """A product in a kernel and a sum in what it calls, unless contraction is off; and floats of 64 bits."""
    faults = scripts("opencl_binaries").faults

    def said(*instructions: tuple[int, ...]) -> list[str]:
        found: list[str] = faults(elf({".spv": spirv(*instructions)}))
        return found

    assert said(ENTRY, OFF, *CALLS, *ADDS) == []
    assert said(ENTRY, *CALLS, *ADDS) == ["products and sums of dot may be joined"]
    assert said(ENTRY, *CALLS, HELPER, (56,)) == []
    assert said(ENTRY, OFF, (22, 3, 64), *CALLS) == ["it has floats of 64 bits"]
    assert said(ENTRY, OFF, (22, 3, 32), *CALLS) == []


def device(problems: dict[str, str], **kernels: dict[str, list[int]]) -> dict[str, Any]:
    return {"matrix_units": 0, "spelling": [], "problems": problems, "kernels": kernels}


def test_what_is_worse(scripts: Any) -> None:
    worse = scripts("opencl_offline").worse
    before = {"dg2": device({}, linear={"q4_k": [16, 128, 0, 0, 64], "nf4": [16, 128, 0, 0, 0]})}
    assert worse(before, before) == []
    better = {"dg2": device({}, linear={"q4_k": [32, 128, 0, 0, 0], "nf4": [16, 128, 0, 0, 0]})}
    assert worse(before, better) == []
    assert worse(better, before) == ["dg2: linear q4_k: private 0 -> 64, lanes 32 -> 16"]
    now = {
        "dg2": device({"linear nf4": "error: no"}, linear={"q4_k": [16, 256, 8, 99, 64]}, embed={"": [8, 1, 0, 0, 0]})
    }
    assert worse(before, now) == [
        "dg2: linear nf4: error: no",
        "dg2: linear q4_k: registers 128 -> 256, local 0 -> 8, spilled 0 -> 99",
        "dg2: linear nf4: it was not built",
        "dg2: embed: it is not recorded (--record)",
    ]
    assert worse({}, before) == ["dg2: nothing is recorded (--record)"]


def test_every_program_of_the_engine_is_built(scripts: Any) -> None:
    offline = scripts("opencl_offline")
    listed = list(offline.programs(offline.Units(8), ("HAS_SUBGROUPS", "HAS_DOT", "HAS_ARRIVALS")))
    assert len(listed) == len({(name, low_bit) for name, low_bit, _, _ in listed})
    made = {name for name, low_bit, _, _ in listed if low_bit == "q4_k"}
    split = {"gate_up": ("", " split 4"), "embed": ("",), "part_linear": ("",), "grouped_linear": ("",)}
    rows = {"linear": (1, 4, 16), "gate_up": (1, 4, 16), "part_linear": (1, 4, 16), "grouped_linear": (1, 4, 16)}
    rows |= dict.fromkeys(("linear_norm", "linear_heads", "linear_heads int8"), (1, 4))
    rows |= dict.fromkeys(("expert_linear", "embed"), (1,))
    assert made == {
        f"{kernel} {count}{groups}"
        for kernel, counts in rows.items()
        for count in counts
        for groups in split.get(kernel, ("", " split 4", " split 16"))
    }
    (many,) = [flags for name, low_bit, _, flags in listed if (name, low_bit) == ("linear 16", "q4_k")]
    assert {"-DMATRIX_WIDTH=8", "-DHAS_MATRIX_UNITS", "-DHAS_DOT"} <= {*many}
    assert "-DHAS_SUBGROUPS" not in many
    recorded = json.loads(offline.RECORD.read_text(encoding="utf-8"))
    assert recorded["devices"].keys() >= {"dg2", "bmg", "lnl", "mtl"}
    for found in recorded["devices"].values():
        assert found["problems"] == {}
        kernels = {name: [*formats] for name, formats in found["kernels"].items()}
        for name, low_bit, _, _ in listed:
            assert any(own.split(":")[0] == name and low_bit in formats for own, formats in kernels.items()), name


def test_the_page_is_what_is_recorded(scripts: Any) -> None:
    offline = scripts("opencl_offline")
    text = offline.RECORD.read_text(encoding="utf-8")
    recorded = json.loads(text)
    assert offline.as_text(recorded) == text
    assert offline.page(recorded) == offline.PAGE.read_text(encoding="utf-8"), "scripts/opencl_offline.py --render"


def test_the_mirror_is_the_machines_own(scripts: Any) -> None:
    mirror = scripts("ocloc").mirror
    security = "https://mirror.example/debian-security\n"
    assert mirror(f"{security}https://mirror.example/debian/\n") == "https://mirror.example/debian"
    assert mirror(f"{security}mirror+file:/etc/apt/mirrors/debian.list\n") == "mirror+file:/etc/apt/mirrors/debian.list"
    assert mirror(f"{security}https://mirror.example/ubuntu\n") is None


def test_without_debian_it_says_that_it_was_skipped(
    scripts: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    offline, ocloc = scripts("opencl_offline"), scripts("ocloc")
    monkeypatch.setenv("IPEX_LOOKAHEAD_CACHE", str(tmp_path))
    monkeypatch.setattr(ocloc.shutil, "which", lambda name: None)
    offline.main([], standalone_mode=False)
    assert "SKIPPED, nothing was built: this system is not Debian" in capsys.readouterr().out
    assert not list(tmp_path.glob("ocloc-*"))
