"""Reader of the binaries of Intel's compiler for a device. Standard library only.

A binary is an ELF file with a section ``.ze_info``, the properties of each kernel, and ``.spv``, the output of the
compiler's front end.
"""

import re
import struct

COLUMNS = ("lanes", "registers", "local", "spilled", "private")
"""Of a kernel: work-items of a thread, registers of a thread, and bytes of local memory a work-group, of registers
spilled, and of private memory a thread."""
ENTRY_POINT, EXECUTION_MODE, TYPE_FLOAT, FUNCTION, FUNCTION_CALL = 15, 16, 22, 54, 57
CONTRACTION_OFF = 31
ADDED = {129, 131}
"""OpFAdd and OpFSub."""
MULTIPLIED = 133


class BadBinaryError(Exception):
    """It is not laid out as is expected."""


def members(archive):
    """The binaries of an archive for several devices: device -> bytes."""
    if archive[:8] != b"!<arch>\n":
        raise BadBinaryError("not an archive")
    found, at = {}, 8
    while at + 60 <= len(archive):
        name, size = archive[at : at + 16].decode().strip().rstrip("/"), int(archive[at + 48 : at + 58])
        at += 60
        if name[:3] != "pad":
            found[name.partition(".")[2]] = archive[at : at + size]
        at += size + size % 2
    return found


def sections(binary):
    """The sections of a 64-bit ELF file: name -> bytes."""
    if binary[:5] != b"\x7fELF\x02":
        raise BadBinaryError("not an ELF file of 64 bits")
    (first,), (count, names) = struct.unpack_from("<Q", binary, 0x28), struct.unpack_from("<HH", binary, 0x3C)
    heads = [struct.unpack_from("<IIQQQQ", binary, first + 64 * i) for i in range(count)]
    found = {}
    for name, _, _, _, at, size in heads:
        begin = heads[names][4] + name
        found[binary[begin : binary.index(b"\0", begin)].decode()] = binary[at : at + size]
    return found


def kernels(binary):
    """What a program's kernels take: name -> numbers in the order of ``COLUMNS``."""
    text = sections(binary).get(".ze_info", b"").decode()
    text = text[text.find("\nkernels:") :].split("\nkernels_misc_info:")[0]
    found = {}
    for part in re.split(r"\n  - name: +", text)[1:]:
        name = part.split("\n", 1)[0].strip()
        if name.startswith("Intel_Symbol_Table"):
            continue
        spilled = _number(part, "spill_size") or sum(
            int(size) for size in re.findall(r"usage: +spill_fill_space\n +size: +(\d+)", part)
        )
        values = {key: _number(part, key) for key in ("simd_size", "grf_count", "slm_size", "private_size")}
        found[name] = [values["simd_size"], values["grf_count"], values["slm_size"], spilled, values["private_size"]]
    if not found:
        raise BadBinaryError("it names no kernels")
    return found


def _number(part, key):
    """A kernel's value, 0 where it has none."""
    found = re.search(r"\n      {}: +(\d+)".format(key), part)
    return int(found[1]) if found else 0


def faults(binary):
    """What would change bits, or a card may not have: sentences."""
    words = sections(binary).get(".spv", b"")
    if words[:4] != b"\x03\x02\x23\x07":
        raise BadBinaryError("it holds no SPIR-V")
    said, entries, off, calls, operations, function = [], {}, set(), {}, {}, 0
    for code, operands in _instructions(struct.unpack("<{}I".format(len(words) // 4), words)):
        if code == ENTRY_POINT:
            entries[operands[1]] = _text(operands[2:])
        elif code == EXECUTION_MODE and operands[1] == CONTRACTION_OFF:
            off.add(operands[0])
        elif code == TYPE_FLOAT and operands[1] == 64:
            said.append("it has floats of 64 bits")
        elif code == FUNCTION:
            function = operands[1]
        elif code == FUNCTION_CALL:
            calls.setdefault(function, set()).add(operands[2])
        operations.setdefault(function, set()).add(code)
    for entry, name in sorted(entries.items()):
        reached, left = set(), [entry]
        while left:
            function = left.pop()
            reached.add(function)
            left += calls.get(function, set()) - reached
        done = set().union(*(operations.get(function, set()) for function in reached))
        if MULTIPLIED in done and done & ADDED and entry not in off:
            said.append("products and sums of {} may be joined".format(name))
    return said


def _instructions(words):
    at = 5
    while at < len(words):
        size = words[at] >> 16
        if size == 0:
            raise BadBinaryError("its SPIR-V is damaged")
        yield words[at] & 0xFFFF, words[at + 1 : at + size]
        at += size


def _text(words):
    return struct.pack("<{}I".format(len(words)), *words).split(b"\0")[0].decode()
