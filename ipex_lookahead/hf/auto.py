"""From a name to a running model: picks the checkpoint's reader, its architecture and an engine."""

from __future__ import annotations

import dataclasses
import logging
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any

from ipex_lookahead.checkpoints import low_bit_folder
from ipex_lookahead.engines.api import TakesImages
from ipex_lookahead.engines.loading import LoadRequest
from ipex_lookahead.engines.low_bit_copy import check_gains
from ipex_lookahead.engines.weights import check_format, not_converted
from ipex_lookahead.errors import InputError, UnsupportedModelError, arg
from ipex_lookahead.hf.ipex_llm_names.arguments import check_config, own_arguments, shared_arguments, wanted_format
from ipex_lookahead.hub import resolve_model
from ipex_lookahead.runtime.cache_files import CacheFiles
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
        n_cpu_moe: int | None = None,
        cpu_moe: bool = False,
        deterministic: bool | None = None,
        ipex: bool = False,
        kv_cache: str = "fp16",
        max_context: int | None = None,
        kv_cache_dir: str | PathLike[str] | None = None,
        kv_cache_disk: int | None = None,
        speculative: bool = False,
        drafter: str | PathLike[str] | None = None,
        draft_vocab: int | str | PathLike[str] | None = None,
        drafter_low_bit: str | None = None,
        progress: bool = True,
        **others: Any,
    ) -> LookaheadModelForCausalLM:
        """Load a checkpoint: a folder, a GGUF file, a short name, a hub id, or ``"default"``, a small demo model.

        Args:
            pretrained_model_name_or_path: path or name of the checkpoint; `ipex-lookahead pull` lists the short names.
            load_in_low_bit: a key of ``FORMATS`` such as ``sym_int4``, a preset such as ``gguf_q4k_m``, or the path of
                a ``.yaml`` file of rules (docs/formats.md); for engine="ipex-llm" one of ipex-llm's formats. None keeps
                the format that each tensor has in the file.
            load_in_4bit: same as ``load_in_low_bit="sym_int4"``.
            load_in_8bit: same as ``load_in_low_bit="sym_int8"``.
            group_size: number of weights that share a scale, 32 or 64 (64 as in ipex-llm).
            mixed_precision: keep the lm_head in sym_int8.
            embedding_qtype: format of an embedding that is not also the lm_head. None keeps its format in the file.
            modules_to_not_convert: parts of module names; matching weights keep their format in the file.
            imatrix: file with an importance matrix, in either of llama.cpp's file formats. Quantization then weights
                the error of each weight by its importance. ``ipex-lookahead imatrix`` computes such a file.
            threads: number of threads; None = the physical cores that this process may use.
            engine: "native", "torch", "ipex-llm", "opencl" or "auto". "auto" selects opencl if ``device`` is "xpu" or
                "opencl"; else native on the CPU for the families that it supports; else torch. The choice and its
                reason are logged and stored in ``model.engine.describe()["chosen"]``.
            device: "cpu", "xpu" (OpenCL's GPUs; "xpu:1" is the second one), "opencl:N" (device N of all OpenCL devices)
                or "cuda". engine="torch" takes PyTorch's names, and "xpu" is then the device of its XPU build. None =
                the engine's default: the CPU, or for engine="opencl" the first GPU.
            gpu_layers: engine="opencl": number of layers, counted from the last, that run on the device. The others run
                on the CPU, with the same bits. A number above the model's means all; None = all that fit its memory.
            n_cpu_moe: engine="opencl": number of layers, counted from the first, with their routed experts on the CPU;
                attention and all else runs on the device. None = the smallest number with which the model fits.
            cpu_moe: engine="opencl": run the routed experts of all layers on the CPU.
            deterministic: engine="torch": run all forwards in one shape, so that lookahead does not change the text;
                slower on a CPU. None = only on PyTorch's xpu. The native engine has this guarantee at full speed.
            ipex: engine="torch" with float weights: apply intel-extension-for-pytorch.
            kv_cache: "fp16", or "int8" with one scale per position and head. "int8" halves the memory and slightly
                changes the logits; lookahead stays exact with both.
            max_context: maximum number of positions of a text, at most the model's; for the native engine. None = the
                model's, or 4,096 for Phi models with a short and a long set of rope frequencies. A larger value makes
                such a model use the long set for all positions; for other models it only changes the limit.
            kv_cache_dir: a folder for keys and values of prompts and answers. ``generate`` with one prompt, without
                ``past_key_values``, reads them instead of computing the beginning of a prompt again, in later processes
                too (docs/operating.md). ``cache_dir`` is the hub's folder.
            kv_cache_disk: maximum size of ``kv_cache_dir`` in bytes; None = 20 GiB.
            speculative: ipex-llm's argument: ``generate`` drafts with a four-bit copy of the model, created at first
                use; for sym_int8, bf16 and fp16. The text does not change.
            drafter: trained head that drafts for this model, on the engines "native" and "opencl": a folder, a GGUF
                file or a hub id. None = the MTP block in the model's files, or a file ``mtp-*.gguf`` next to them, if
                there is one. The text does not change (docs/draft_models.md).
            draft_vocab: number of tokens that a head may draft, the most frequent ones by the tokenizer's merges, or a
                file from ``ipex-lookahead drafter cut``. 0 = all; None = 32,768. Tokens of the prompt and the answer
                can be drafted in addition.
            drafter_low_bit: low-bit format of the head's matrices. None = ``load_in_low_bit`` if that has 6 bits or
                more, else sym_int8.
            progress: show a progress bar while weights are quantized and packed.
            **others: the hub's arguments (``revision``, ``cache_dir``, ``token``, ``local_files_only``,
                ``force_download``, ``subfolder``); ``config``, which must equal the checkpoint's; ``dtype``
                (``torch_dtype``) and ``device_map``, for engines other than native; and arguments of transformers and
                ipex-llm that have no effect or must be at their default (docs/migrating.md).

        Raises:
            InputError: no such checkpoint, or an invalid argument.
            ModelFormatError: the checkpoint's bytes do not match its format.
            UnsupportedModelError: this package cannot run the model.
            LowBitFormatError: an unknown low-bit format.
            EngineError: the engine cannot run on this machine.
            DownloadError: the model could not be downloaded.
        """
        shared = shared_arguments("from_pretrained", others, own_arguments(cls.from_pretrained))
        if others.get("trust_remote_code"):
            log.info("trust_remote_code is ignored: this package never runs code from a checkpoint")
        if kv_cache_disk is not None and kv_cache_dir is None:
            raise InputError(
                "kv_cache_disk needs kv_cache_dir, the folder that it limits", hint="give both, or neither"
            )
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
                n_cpu_moe=n_cpu_moe,
                cpu_moe=cpu_moe,
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
            model = _loaded(request, engine, name, reason, speculative)
        if kv_cache_dir is not None:
            model.runtime.use_cache_files(CacheFiles(kv_cache_dir, kv_cache_disk), path)
        return model

    @classmethod
    def from_gguf(cls, fpath: str | PathLike[str], **kwargs: Any) -> tuple[LookaheadModelForCausalLM, Any]:
        """Load a GGUF file and return model and tokenizer; takes ``from_pretrained``'s arguments and ``low_bit``."""
        if "low_bit" in kwargs:
            kwargs["load_in_low_bit"] = kwargs.pop("low_bit")
        model = cls.from_pretrained(fpath, **kwargs)
        return model, model.tokenizer

    @classmethod
    def load_low_bit(
        cls, pretrained_model_name_or_path: str | PathLike[str], **kwargs: Any
    ) -> LookaheadModelForCausalLM:
        """Load a folder written by ``model.save_low_bit`` without quantizing again; InputError for other folders."""
        return cls.from_pretrained(low_bit_folder(pretrained_model_name_or_path), **kwargs)


class AutoModelForImageTextToText(AutoModelForCausalLM):
    """Loads models that take images, with transformers' name; ``generate`` takes the outputs of ``AutoProcessor``."""

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | PathLike[str], **kwargs: Any
    ) -> LookaheadModelForCausalLM:
        """Load a checkpoint as ``AutoModelForCausalLM`` does, with its arguments and errors.

        Raises UnsupportedModelError for a model that takes no images.
        """
        model = AutoModelForCausalLM.from_pretrained(pretrained_model_name_or_path, **kwargs)
        if not (isinstance(model.engine, TakesImages) and model.engine.images is not None):
            raise UnsupportedModelError(
                f"{pretrained_model_name_or_path} takes no images on the {model.engine.name} engine",
                hint="AutoModelForCausalLM loads models of text",
            )
        return model


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
