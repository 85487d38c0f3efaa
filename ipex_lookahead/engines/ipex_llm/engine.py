"""The ipex-llm engine: models that ipex-llm has loaded and optimized, in our decoding loop.

The model, its kernels and its cache are ipex-llm's; proposers, verification, stop handling and sampling are ours. Such
a model is a transformers model, so the torch engine runs it; this file has what ipex-llm does differently.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from ipex_lookahead.architectures import model_types
from ipex_lookahead.checkpoints import Checkpoint, family_of, open_checkpoint
from ipex_lookahead.checkpoints.config_json import read_json
from ipex_lookahead.checkpoints.hf_folder import write_hf_folder
from ipex_lookahead.checkpoints.safetensors import SafetensorsCheckpoint, refuse_without_safetensors
from ipex_lookahead.engines.api import Adapter
from ipex_lookahead.engines.foreign import foreign_config
from ipex_lookahead.engines.hf_config import generation_defaults, transformers_config
from ipex_lookahead.engines.loading import LoadedModel, LoadRequest, refuse_options
from ipex_lookahead.engines.requantize import requantized_elsewhere
from ipex_lookahead.engines.torch.cache import ModelSequence, SequenceCache
from ipex_lookahead.engines.torch.engine import States, TorchEngine
from ipex_lookahead.engines.torch.load import compute_dtype
from ipex_lookahead.errors import EngineError, LookaheadError, LowBitFormatError, UnsupportedModelError, arg, first_line
from ipex_lookahead.system.compat import RELEASE

log = logging.getLogger("ipex_lookahead")

STACK = (
    "ipex-llm==2.2.0",
    "torch==2.1.2",
    "transformers==4.37.0",
    "tokenizers==0.15.2",
    "numpy==1.26.4",
    "accelerate==0.23.0",
    "sentencepiece==0.2.1",
    "py-cpuinfo==9.0.0",
)
"""The tested packages. ipex-llm 2.2.0, the last release, works with no later ones (and imports py-cpuinfo without
declaring it)."""

INSTALL = f"pip install {' '.join(STACK)}"


class IpexLlmEngine(TorchEngine):
    """An ipex-llm model with the ``Engine`` protocol.

    Args:
        model: from ``ipex_llm.transformers``, or through ``ipex_llm.optimize_model``.
        **options: see :class:`TorchEngine`.

    Raises:
        UnsupportedModelError: see :class:`TorchEngine`; also for ``deterministic=True``, since ipex-llm's cache has no
            fixed shape.
        EngineError: the environment makes ipex-llm's cache drop positions.
    """

    name = "ipex-llm"
    weights: Any = None  # packed by ipex-llm, in formats that are not ours

    def __init__(self, model: Any, **options: Any) -> None:
        if os.environ.get("IPEX_LLM_COMPRESS_KV_CACHE") == "1":
            raise EngineError(
                "IPEX_LLM_COMPRESS_KV_CACHE=1 makes ipex-llm's cache drop positions: drafts cannot be rolled back",
                hint="unset it",
            )
        # ipex-llm's lm_head computes only the last row if there are more than ten rows. That suits a prompt but not a
        # draft, so each forward sets it.
        self._heads = [module for module in model.modules() if getattr(module, "optimize_lm_head", False)]
        super().__init__(model, new_sequence=ModelSequence, **options)

    def load_adapter(self, adapter: Adapter) -> None:
        """Raise UnsupportedModelError: ipex-llm's fused kernels do not call the modules that an adapter changes."""
        raise UnsupportedModelError(
            f"adapter {adapter.name}: the {self.name} engine takes no adapters",
            hint=f"use {arg('engine', 'native')}, or merge the adapter with peft's merge_and_unload",
        )

    def _run(
        self,
        cache: SequenceCache,
        past: Any,
        ids: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor | None,
        want: list[int],
        states: States | None = None,
    ) -> torch.Tensor | None:
        last_only = not want or want == [ids.shape[1] - 1]
        for head in self._heads:
            head.optimize_lm_head = last_only
        try:
            return super()._run(cache, past, ids, positions, mask, want, states)
        finally:
            for head in self._heads:
                head.optimize_lm_head = True


def is_ipex_llm_model(model: Any) -> bool:
    """Return True if ipex-llm made or changed the model. Does not import ipex-llm."""
    if not isinstance(model, torch.nn.Module):
        return False
    for module in model.modules():
        forward = getattr(module.forward, "__func__", module.forward)
        places = (type(module).__module__, getattr(forward, "__module__", None) or "")
        if any(place.split(".")[0] == "ipex_llm" for place in places):
            return True
    return False


def load(request: LoadRequest) -> LoadedModel:
    """Load a checkpoint through ``ipex_llm.transformers.AutoModelForCausalLM.from_pretrained``.

    A checkpoint that ipex-llm does not read (GGUF, a low-bit folder) is first written as a temporary Hugging Face
    folder. Weights come from safetensors only; no code of a checkpoint is run.

    Raises:
        EngineError: ipex-llm is not installed or does not import.
        LowBitFormatError: ipex-llm lacks the format.
        InputError: an option of another engine.
        UnsupportedModelError: ipex-llm or its transformers cannot load the model.
    """
    auto, formats = _ipex_llm()
    refuse_options(
        "ipex-llm",
        "ipex-llm has none such on the CPU",
        embedding_qtype=request.embedding_qtype,
        imatrix=request.imatrix,
        kv_cache=request.kv_cache if request.kv_cache != "fp16" else None,
        max_context=request.max_context,
        **request.placement(),
        group_size=request.group_size if request.group_size != 32 else None,
        device=request.device if str(request.device) not in ("None", "cpu") else None,
        deterministic=request.deterministic,
        ipex=request.ipex,
    )
    label = "bf16" if request.low_bit is None else request.low_bit
    if label not in formats:
        raise LowBitFormatError(f"ipex-llm has no format {label!r}; it has {', '.join(sorted(formats))}")
    with _source(request) as (folder, loaded):
        options: dict[str, Any] = {
            "load_in_low_bit": label,
            "optimize_model": request.others.get("optimize_model", True),
            "cpu_embedding": bool(request.others.get("cpu_embedding", False)),
            "modules_to_not_convert": list(request.not_converted) or None,
            "mixed_precision": request.mixed_precision,
            "config": loaded.config,
            "trust_remote_code": False,
            "use_safetensors": True,
            "local_files_only": True,
        }
        if label not in ("bf16", "fp16"):
            options["torch_dtype"] = compute_dtype(request.dtype, label, torch.device("cpu"))
        try:
            model = auto.from_pretrained(str(folder), **options)
            loaded.engine = IpexLlmEngine(
                model, low_bit=label, threads=request.threads, facts={"ipex_llm": version("ipex-llm")}
            )
        except LookaheadError:
            raise
        except (ValueError, RuntimeError, OSError, KeyError, TypeError, AttributeError, ImportError) as error:
            raise UnsupportedModelError(
                f"{request.path}: ipex-llm cannot run this model in {label}: {first_line(error)}",
                hint=f"use {arg('engine', 'native')} or {arg('engine', 'torch')}",
            ) from error
    loaded.low_bit = label
    if not loaded.generation_config:
        loaded.generation_config = model.generation_config.to_diff_dict()
    return loaded


@contextmanager
def _source(request: LoadRequest) -> Iterator[tuple[Path, LoadedModel]]:
    """Yield a folder that transformers reads, and the loaded model without its engine."""
    family = family_of(request.path)
    if family is not None and family not in model_types():
        from ipex_lookahead.tokenization.folder import text_from_folder

        refuse_without_safetensors(request.path)
        config, plain = foreign_config(read_json(request.path / "config.json"), request.path)
        tokenizer, why_none = request.tokenizer(lambda: text_from_folder(request.path, plain))
        yield (
            request.path,
            LoadedModel(None, "", plain, tokenizer=tokenizer, config=config, no_tokenizer=why_none),
        )
        return
    checkpoint = open_checkpoint(request.path)
    try:
        _refuse_what_is_newer(checkpoint)
        if request.low_bit is not None and (found := requantized_elsewhere(checkpoint, request.low_bit)) is not None:
            log.warning("%s. Load the float original, or use the native engine, which reads the file as it is", found)
        tokenizer, why_none = request.tokenizer(checkpoint.text_tokenizer)
        about = LoadedModel(
            None,
            "",
            dict(checkpoint.config),
            generation_defaults(checkpoint),
            tokenizer,
            transformers_config(checkpoint.config, checkpoint.path),
            why_none,
        )
        if isinstance(checkpoint, SafetensorsCheckpoint):
            yield request.path, about
            return
        with tempfile.TemporaryDirectory(prefix="ipex-lookahead-") as folder:
            yield write_hf_folder(checkpoint, Path(folder) / "model", tokenizer=False), about
    finally:
        checkpoint.close()


def _refuse_what_is_newer(checkpoint: Checkpoint) -> None:
    """Raise UnsupportedModelError for parts of Llama that an old transformers would silently ignore."""
    config = checkpoint.config
    scaling = (config.get("rope_scaling") or {}).get("rope_type", "default")
    width = config["hidden_size"] // config["num_attention_heads"]
    newer = []
    if RELEASE < (4, 41) and config.get("mlp_bias"):
        newer.append("biases in the MLP")
    if RELEASE < (4, 43) and scaling not in ("default", "linear", "dynamic"):
        newer.append(f"rope scaling of the kind {scaling!r}")
    if RELEASE < (4, 46) and config.get("head_dim") not in (None, width):
        newer.append(f"heads of {config['head_dim']} (hidden size / heads is {width})")
    if newer:
        raise UnsupportedModelError(
            f"{checkpoint.path}: has {' and '.join(newer)}, which ipex-llm's transformers does not know",
            hint=f"use {arg('engine', 'native')}",
        )


def _ipex_llm() -> tuple[Any, dict[str, int]]:
    """Return ipex-llm's AutoModelForCausalLM and its formats."""
    if importlib.util.find_spec("ipex_llm") is None:
        raise EngineError(
            "the engine ipex-llm needs the package ipex-llm, which is not installed",
            hint=f"in an environment of its own, with Python 3.10 or 3.11: {INSTALL}",
        )
    try:
        from ipex_llm.ggml.quantize import ggml_tensor_qtype
        from ipex_llm.transformers import AutoModelForCausalLM
    except Exception as error:  # its imports may raise anything with other releases of its dependencies
        raise EngineError(
            f"ipex-llm is there but does not import: {first_line(error)}", hint=f"it works with: {INSTALL}"
        ) from error
    return AutoModelForCausalLM, dict(ggml_tensor_qtype)
