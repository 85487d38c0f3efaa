"""Writing a GGUF file from another one, or a folder made of one: metadata as they are, matrices in any format.

What a block of a format is in the file, the format declares (``GgufType.record``); where a weight lies, the family's
spec does (``Tensor.gguf``): rows of rotary pairs, parts of fused tensors and experts go back to where they came from.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.spec import ModelSpec, Tensor
from ipex_lookahead.checkpoints.gguf import GgufCheckpoint
from ipex_lookahead.checkpoints.gguf_reader import GgufTensor
from ipex_lookahead.checkpoints.low_bit_save import Progress
from ipex_lookahead.checkpoints.placed import row_order, run_of
from ipex_lookahead.errors import InputError, SaveError
from ipex_lookahead.files.temporary import temporary_file
from ipex_lookahead.formats import FORMATS, get_format
from ipex_lookahead.formats.base import PackedWeight

GGUF_FORMATS = tuple(name for name, low_bit in FORMATS.items() if low_bit.gguf is not None)
"""The formats that are types of GGUF's."""
_OURS = ("GGUF.", "split.", "general.alignment", "general.file_type", "general.quantization_version")
"""Keys that are of the file, not of the model: the new one has its own."""


class Source(Protocol):
    """What is written as GGUF.

    Attributes:
        path: of the file or folder, for messages.
        config, spec: what the model is, as checkpoints have it.
        metadata: keys and values; ``metadata_file`` is the GGUF file that has them.
    """

    path: Path
    config: dict[str, Any]
    spec: ModelSpec
    metadata: dict[str, Any]

    @property
    def metadata_file(self) -> Path:
        """See above."""
        ...

    def stored(self) -> Iterator[tuple[GgufTensor, list[Tensor]]]:
        """Every tensor of the new file, with the weights of the model that are it or parts of it."""
        ...

    def copied(self, stored: GgufTensor, parts: list[Tensor]) -> npt.NDArray[np.uint8]:
        """The bytes of a tensor that gets no new format."""
        ...


def save_gguf(
    target: Path,
    source: Source,
    formats: Mapping[str, str],
    weight: Callable[[Tensor], PackedWeight],
    *,
    progress: Progress | None = None,
) -> None:
    """Write ``target`` whole under a temporary name first; what was there before is replaced.

    Args:
        target: the file.
        source: the opened file, or folder, that metadata, vectors and all other tensors are copied from.
        formats: weight's name -> key of ``GGUF_FORMATS`` that it is to have; of other weights the blocks are copied.
        weight: gives a weight of ``formats`` in its format; one tensor of the file is held at a time.
        progress: see ``low_bit_save.Progress``.

    Raises:
        InputError: a format that is no type of GGUF's or whose blocks do not divide the weight's rows, different
            formats for parts of one tensor, or metadata that the gguf package does not write.
        SaveError: writing failed; what was there is as it was.
    """
    import gguf

    layout = [(stored, parts, _format(stored, parts, formats)) for stored, parts in source.stored()]
    sizes = [_bytes(stored, form) for stored, _, form in layout]
    writer = gguf.GGUFWriter(None, str(source.metadata["general.architecture"]))
    _copy_metadata(writer, source.metadata_file)
    kinds = [
        gguf.GGMLQuantizationType[stored.type.name if form is None else _type(form).name] for stored, _, form in layout
    ]
    for (stored, _, _), kind, size in zip(layout, kinds, sizes, strict=True):
        writer.add_tensor_info(stored.name, stored.shape, np.dtype(np.float32), size, kind)
    writer.add_file_type(_file_type(kinds[sizes.index(max(sizes))].name))
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    done = 0
    try:
        with temporary_file(target) as temporary:
            try:
                writer.write_header_to_file(temporary)
                try:
                    writer.write_kv_data_to_file()
                except ValueError as error:  # arrays of arrays, some of them empty
                    raise InputError(f"{source.metadata_file}: metadata cannot be written again: {error}") from None
                writer.write_ti_data_to_file()
                for (stored, parts, form), size in zip(layout, sizes, strict=True):
                    data = source.copied(stored, parts) if form is None else _joined(stored, parts, form, weight)
                    writer.write_tensor_data(data)
                    done += size
                    if progress is not None:
                        progress(done, sum(sizes))
                writer.flush()
                for file in writer.fout or ():
                    os.fsync(file.fileno())
            finally:
                writer.close()
            _check(temporary, source)
            os.replace(temporary, target)
    except OSError as error:
        raise SaveError(
            f"{target}: could not be saved: {error.strerror or error}; nothing that was there has been changed",
            hint="check the folder, its permissions and the space on its disk",
        ) from error


def _format(stored: GgufTensor, parts: list[Tensor], formats: Mapping[str, str]) -> str | None:
    """The format that a tensor of the file is to have; None to copy it."""
    if any(part.gguf.layout == "turned" for part in parts):  # its blocks go along rows that are a weight's inputs
        return None
    wanted = {formats.get(part.name) for part in parts} or {None}
    if len(wanted) > 1:
        raise InputError(f"{stored.name} holds {', '.join(part.name for part in parts)}: they must have one format")
    (form,) = wanted
    if form is not None and stored.shape[-1] % _type(form).inputs:
        raise InputError(
            f"{stored.name} has rows of {stored.shape[-1]}; {form} needs whole blocks of {_type(form).inputs} in GGUF"
        )
    return form


def _type(form: str) -> Any:
    kind = get_format(form).gguf
    if kind is None:
        raise InputError(f"{form} is no type of GGUF's; those that are: {', '.join(GGUF_FORMATS)}")
    return kind


def _bytes(stored: GgufTensor, form: str | None) -> int:
    if form is None:
        return stored.nbytes
    kind = _type(form)
    return int(np.prod(stored.shape, dtype=np.int64) // kind.inputs * kind.record.itemsize)


def _check(written: Path, source: Source) -> None:
    """Raise InputError where what was written is no longer the model: a folder's config.json may have been edited."""
    if source.metadata_file == source.path:  # a GGUF file, whose words have been copied
        return
    checkpoint = GgufCheckpoint(written)
    checkpoint.close()
    differ = sorted(
        key for key in {*checkpoint.config, *source.config} if checkpoint.config.get(key) != source.config.get(key)
    )
    if differ:
        raise InputError(
            f"{source.path}: config.json does not say what the GGUF file said that the folder was made of"
            f" ({', '.join(differ[:8])}), and a new one would have the old words",
            hint="make the folder again from the GGUF file",
        )


def _joined(
    stored: GgufTensor, parts: list[Tensor], form: str, weight: Callable[[Tensor], PackedWeight]
) -> npt.NDArray[np.uint8]:
    """The tensor's blocks, uint8 [rows, bytes], each weight's rows where the file has them."""
    kind = _type(form)
    rows = int(np.prod(stored.shape[:-1], dtype=np.int64))
    data = np.empty((rows, stored.shape[-1] // kind.inputs * kind.record.itemsize), np.uint8)
    filled = 0
    for part in parts:
        run, order = run_of(part, part.gguf), row_order(part, part.gguf)
        blocks = _blocks(weight(part), form)
        data[run.first :][run.rows] = blocks if order is None else blocks[order]
        filled += run.count
    if filled != rows:
        raise InputError(f"{stored.name} has {rows} rows, of which the model's weights are {filled}")
    return data


def _blocks(weight: PackedWeight, form: str) -> npt.NDArray[np.uint8]:
    """A weight as rows of its format's blocks, uint8 [n_out, bytes]."""
    assert weight.format == form, weight.format
    if weight.order is not None:
        raise InputError("GGUF has no place for the order of a weight's inputs (act order)")
    record, rows = _type(form).record, weight.shape[0]
    blocks = np.empty((rows, weight.shape[1] // _type(form).inputs), record)
    for stream in get_format(form).streams:
        array = np.ascontiguousarray(getattr(weight, stream.name))
        blocks[stream.name] = array.reshape(blocks.shape + record[stream.name].shape)
    return blocks.view(np.uint8).reshape(rows, -1)


def _copy_metadata(writer: Any, source: Path) -> None:
    """Every key of the model with its own type, long arrays too, which our reader does not keep."""
    import gguf

    reader = gguf.GGUFReader(source)
    for key, field in reader.fields.items():
        if key == "general.architecture" or key.startswith(_OURS):
            continue
        of_elements = field.types[-1] if len(field.types) > 1 else None
        value = field.contents()
        if of_elements is not None and not value:
            continue  # an empty array says nothing, and the writer has no type for it
        writer.add_key_value(key, value, field.types[0], sub_type=of_elements)


def _file_type(name: str) -> int:
    """llama.cpp's number for a file that is mostly of that type; it is for information."""
    from gguf import LlamaFileType

    names = {"F32": "ALL_F32", "MXFP4": "MOSTLY_MXFP4_MOE"}
    names |= {kind: f"MOSTLY_{kind}_S" for kind in ("Q3_K", "Q4_K", "Q5_K")}
    found: int = getattr(LlamaFileType, names.get(name, f"MOSTLY_{name}"), LlamaFileType.GUESSED).value
    return found
