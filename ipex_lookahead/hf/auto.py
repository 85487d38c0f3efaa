"""From a name to a running model: picks the checkpoint's reader, its architecture and an engine."""

from __future__ import annotations

import dataclasses
import logging
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any

from ipex_lookahead.checkpoints import low_bit_folder
from ipex_lookahead.engines.loading import LoadRequest
from ipex_lookahead.engines.low_bit_copy import check_gains
from ipex_lookahead.engines.weights import check_format, not_converted
from ipex_lookahead.errors import InputError, arg
from ipex_lookahead.hf.ipex_llm_names.arguments import check_config, own_arguments, shared_arguments, wanted_format
from ipex_lookahead.hub import resolve_model
from ipex_lookahead.runtime.loading import (
    check_engine,
    checked_format,
    checked_imatrix,
    choose_engine,
    drafting_fields,
    load_model,
    progress_bar,
)
from ipex_lookahead.system.extras import need_torch

if TYPE_CHECKING:
    from ipex_lookahead.hf.model import LookaheadModelForCausalLM

log = logging.getLogger("ipex_lookahead")


class AutoModelForCausalLM:
    """Loads causal language models, with the names that ipex-llm's users know."""

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | PathLike[str],
        *,
        load_in_low_bit: str | None = None,
        load_in_4bit: bool = False,
        load_in_8bit: bool = False,
        group_size: int = 32,
        mixed_precision: bool = False,
        embedding_qtype: str | None = None,
        modules_to_not_convert: list[str] | None = None,
        imatrix: str | PathLike[str] | None = None,
        threads: int | None = None,
        engine: str = "auto",
        device: Any = None,
        gpu_layers: int | None = None,
        deterministic: bool | None = None,
        ipex: bool = False,
        kv_cache: str = "fp16",
        max_context: int | None = None,
        speculative: bool = False,
        drafter: str | PathLike[str] | None = None,
        draft_vocab: int | str | PathLike[str] | None = None,
        drafter_low_bit: str | None = None,
        progress: bool = True,
        **others: Any,
    ) -> LookaheadModelForCausalLM:
        """Load a checkpoint: a folder, a GGUF file, a short name, a hub id, or ``"default"``, the embedded model.

        Args:
            pretrained_model_name_or_path: where the checkpoint is; `ipex-lookahead pull` lists the short names.
            load_in_low_bit: a key of ``FORMATS`` such as ``sym_int4``, a preset such as ``gguf_q4k_m``, or the path of
                a ``.yaml`` file of rules (``formats/rules.py``); for engine="ipex-llm" one of ipex-llm's; None keeps
                every tensor as it is in the file.
            load_in_4bit: a synonym of ``load_in_low_bit="sym_int4"``.
            load_in_8bit: a synonym of ``load_in_low_bit="sym_int8"``.
            group_size: inputs that share a scale, 32 or 64 (ipex-llm's).
            mixed_precision: the lm_head in sym_int8.
            embedding_qtype: format of an embedding that is not the lm_head too, which else stays as it is in the file.
            modules_to_not_convert: parts of module names; matching weights stay as they are in the file.
            imatrix: an importance matrix's file, of either of llama.cpp's kinds: where weights are quantized, errors of
                what matters more weigh more. ``ipex-lookahead imatrix`` makes one.
            threads: threads to compute with; None = the physical cores this process may use.
            engine: "native", "torch", "ipex-llm", "opencl", or "auto": native for the families that it has, on the CPU;
                opencl where ``device`` is an OpenCL device, or "xpu" and pyopencl is installed; else torch. The choice
                and its reason are logged, and in ``model.engine.describe()["chosen"]``.
            device: "cpu", "xpu" (Intel GPUs; "xpu:1" the second), "cuda" or "opencl:0" (of all OpenCL devices); None =
                the engine's own: the CPU, or for engine="opencl" the first GPU.
            gpu_layers: for engine="opencl": how many of the last layers are on the device; the others run on the CPU,
                with the same bits. A number beyond the model's means all; None = all that fit its memory.
            deterministic: for engine="torch": forwards of one shape, so that lookahead gives the very text of plain
                decoding; slower on a CPU. None = on Intel GPUs only. The native engine is that at full speed.
            ipex: for engine="torch" and float weights: apply intel-extension-for-pytorch
                (see ``engines/torch/ipex.py``).
            kv_cache: "fp16", or "int8" with a scale a position and head: half the memory, a little less exact to the
                model (never to lookahead).
            max_context: for the native engine: positions a text may have, at most the model's; None = the model's, or
                for Phi models with two sets of rope frequencies the 4,096 that the short set is for. More of them make
                such a model use the long set throughout; else nothing changes but the limit.
            speculative: ipex-llm's: ``generate`` drafts with a four-bit copy of the model, made when first needed; for
                sym_int8, bf16 and fp16. The text never changes.
            drafter: a trained head that drafts for this model, on the native engine: a folder, a GGUF file, or a hub
                id. None = the block (MTP) in the model's own files, or a file ``mtp-*.gguf`` next to them, if present.
                The text never changes (docs/draft_models.md).
            draft_vocab: how many tokens a head may draft, those of the vocabulary that a tokenizer's merges name first;
                0 = all; None = 32,768. Or a file of ``ipex-lookahead drafter cut``, with the list. In addition those
                of the prompt and the answer are drafted.
            drafter_low_bit: a format, of a head's matrices; None = ``load_in_low_bit``'s where that has 6 bits or more,
                else sym_int8.
            progress: show a progress bar while weights are quantized and packed.
            **others: the hub's arguments (``revision``, ``cache_dir``, ``token``, ``local_files_only``,
                ``force_download``, ``subfolder``), which are supported; ``config``, which must equal the
                checkpoint's; ``dtype`` (``torch_dtype``) and ``device_map``, for engines other than native; and those
                of transformers and ipex-llm that have no effect or must be at their default
                (``hf/ipex_llm_names/arguments.py``).

        Raises:
            InputError: no such checkpoint, or an argument outside what is allowed.
            ModelFormatError: the checkpoint's bytes do not match its format.
            UnsupportedModelError: a model this package cannot run.
            LowBitFormatError: an unknown low-bit format.
            EngineError: the engine cannot run on this machine.
            DownloadError: the model could not be fetched.
        """
        shared = shared_arguments("from_pretrained", others, own_arguments(cls.from_pretrained))
        if others.get("trust_remote_code"):
            log.info("trust_remote_code is ignored: this package never runs code from a checkpoint")
        low_bit = wanted_format(load_in_low_bit, load_in_4bit=load_in_4bit, load_in_8bit=load_in_8bit)
        check_engine(engine)
        device = _placed(device, others.get("device_map"))
        path = resolve_model(str(pretrained_model_name_or_path), progress=progress, options=shared.hub)
        check_config(shared.config, path)
        with progress_bar(progress) as report:
            request = LoadRequest(
                path,
                low_bit=checked_format(low_bit, engine),
                group_size=group_size,
                mixed_precision=mixed_precision,
                embedding_qtype=embedding_qtype and check_format(embedding_qtype),
                not_converted=not_converted(modules_to_not_convert),
                device=device,
                gpu_layers=gpu_layers,
                dtype=shared.dtype,
                deterministic=deterministic,
                threads=threads,
                kv_cache=kv_cache,
                max_context=max_context,
                check_label=check_gains if speculative else None,
                imatrix=checked_imatrix(imatrix, low_bit),
                others=shared.others,
                ipex=ipex,
                **drafting_fields(drafter, draft_vocab, drafter_low_bit, progress=progress),
                progress=report,
            )
            name, reason = choose_engine(engine, request)
            if speculative and name != "native":
                raise InputError(
                    f"speculative=True needs the native engine's copy of the weights, and this is the {name} engine"
                    f" ({reason}); leave it out, and use lookahead or draft_model of generate"
                )
            return _loaded(request, engine, name, reason, speculative)

    @classmethod
    def from_gguf(cls, fpath: str | PathLike[str], **kwargs: Any) -> tuple[LookaheadModelForCausalLM, Any]:
        """A GGUF file's model and tokenizer; the arguments of ``from_pretrained``, and ipex-llm's ``low_bit``."""
        if "low_bit" in kwargs:
            kwargs["load_in_low_bit"] = kwargs.pop("low_bit")
        model = cls.from_pretrained(fpath, **kwargs)
        return model, model.tokenizer

    @classmethod
    def load_low_bit(
        cls, pretrained_model_name_or_path: str | PathLike[str], **kwargs: Any
    ) -> LookaheadModelForCausalLM:
        """A folder written by ``model.save_low_bit``: nothing is quantized again. Raises InputError for any other."""
        return cls.from_pretrained(low_bit_folder(pretrained_model_name_or_path), **kwargs)


def load_model_and_tokenizer(
    name_or_path: str, *, low_bit: str | None = None, **options: Any
) -> tuple[LookaheadModelForCausalLM, Any | None]:
    """What the commands use: a model, and its tokenizer or None. See ``AutoModelForCausalLM.from_pretrained``."""
    model = AutoModelForCausalLM.from_pretrained(name_or_path, load_in_low_bit=low_bit, **options)
    return model, model.tokenizer


def _loaded(
    request: LoadRequest, requested: str, name: str, reason: str, speculative: bool
) -> LookaheadModelForCausalLM:
    """The model on the engine of that name. A pickle of it holds these arguments, and calls this again."""
    need_torch("a model with transformers' methods")
    from ipex_lookahead.engines.hf_config import transformers_config
    from ipex_lookahead.hf.model import LookaheadModelForCausalLM
    from ipex_lookahead.system.compat import generation_config

    loaded = load_model(request, requested, name, reason)
    again = dataclasses.replace(request, path=request.path.absolute(), progress=None)
    return LookaheadModelForCausalLM(
        loaded.config
        if loaded.config is not None
        else transformers_config(loaded.checkpoint_config, request.path, strict=False),
        loaded.engine,
        generation_config=generation_config(loaded.generation_config),
        low_bit=loaded.low_bit,
        tokenizer=loaded.tokenizer,
        checkpoint_config=loaded.checkpoint_config,
        speculative=speculative,
        source=request.path,
        origin=partial(_loaded, again, requested, name, reason, speculative),
    )


def _placed(device: Any, device_map: Any) -> Any:
    """``device``, or the one that transformers' ``device_map`` names. Raises InputError for a map of several."""
    whole = device_map[""] if isinstance(device_map, dict) and list(device_map) == [""] else device_map
    if whole is None or (whole == "auto" and device is None):
        return device
    named = f"cuda:{whole}" if isinstance(whole, int) else str(whole)
    if isinstance(whole, dict) or named.split(":")[0] not in ("auto", "cpu", "cuda", "xpu"):
        raise InputError(
            f"device_map={device_map!r} is not supported: an engine runs a model on one device; pass {arg('device')}"
            " 'cpu', 'xpu' or 'cuda', or load the model with transformers and wrap() it"
        )
    if named != "auto" and device is not None and str(device) != named:
        raise InputError(f"{arg('device', str(device))} and device_map={device_map!r} name two devices; pass one")
    return named if device is None else device
