"""The arguments that ``from_pretrained`` shares with transformers' and ipex-llm's.

Which are supported, which change nothing, which must be left at their default, and why: none is dropped without a word.
"""

from __future__ import annotations

import difflib
import inspect
import json
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipex_lookahead.checkpoints.config_json import read_json
from ipex_lookahead.errors import InputError
from ipex_lookahead.files.paths import given_path
from ipex_lookahead.files.refusal import Refusal
from ipex_lookahead.hub import HubOptions

WITHOUT_EFFECT = {
    "trust_remote_code": "code from a checkpoint is never run",
    "code_revision": "code from a checkpoint is never run",
    "optimize_model": "a model is always optimized; engine='ipex-llm' passes it on",
    "disable_optimize_pre": "a model is always optimized",
    "use_cache": "generate always uses the cache",
    "cpu_embedding": "the embedding is where the model is; engine='ipex-llm' passes it on",
    "replace_embedding": "the older name of cpu_embedding",
    "low_cpu_mem_usage": "weights are always read one at a time",
    "_fast_init": "no weight is initialized before it is read",
    "offload_state_dict": "weights are always read one at a time",
    "attn_implementation": "each engine has its own attention",
    "_attn_implementation": "each engine has its own attention",
    "resume_download": "interrupted downloads always resume",
    "weights_only": "pickles are never opened",
    "device_map": "checked by the caller, for each engine",
    "torch_dtype": "read by the engines",
    "dtype": "read by the engines",
}
"""Argument -> why any value of it is right."""

ONLY_DEFAULT: Mapping[str, Refusal] = {
    "model_hub": Refusal(
        "models come from Hugging Face's hub; fetch it (modelscope download --model NAME --local_dir FOLDER)"
        " and give the folder",
        unless=("huggingface", None),
    ),
    "quantization_config": Refusal(
        "weights are packed by load_in_low_bit; pass load_in_low_bit='sym_int4'", unless=(None,)
    ),
    "disk_embedding": Refusal(
        "weights are kept in memory, the embedding as the file has it; leave it out", unless=(False, None)
    ),
    "pipeline_parallel_stages": Refusal("a model runs on one device; leave it out", unless=(1, None)),
    "torchscript": Refusal("models are not traced; leave it out", unless=(False, None)),
    "native": Refusal(
        "ipex-llm's ggml files are not read; give a Hugging Face folder or a GGUF file", unless=(False, None)
    ),
    "use_safetensors": Refusal(
        "weights are read from safetensors and GGUF only, never from pickles", unless=(True, None)
    ),
    "variant": Refusal("name the folder that holds the variant; leave it out", unless=(None,)),
    "proxies": Refusal("set the variable HTTPS_PROXY instead", unless=(None,)),
    "mirror": Refusal("set the variable HF_ENDPOINT instead", unless=(None,)),
    "from_tf": Refusal("weights are read from safetensors and GGUF only", unless=(False, None)),
    "from_flax": Refusal("weights are read from safetensors and GGUF only", unless=(False, None)),
    "state_dict": Refusal(
        "weights come from the checkpoint; load with transformers and call optimize_model", unless=(None,)
    ),
    "gguf_file": Refusal("give the GGUF file itself as the model", unless=(None,)),
    "max_memory": Refusal("a model runs on one device; leave it out", unless=(None,)),
    "offload_folder": Refusal("nothing is offloaded; leave it out", unless=(None,)),
    "output_loading_info": Refusal("a missing tensor is an error; leave it out", unless=(False, None)),
    "output_attentions": Refusal("attention weights are not returned; leave it out", unless=(False, None)),
    "output_hidden_states": Refusal(
        "pass it in the call: model(input_ids, output_hidden_states=True)", unless=(False, None)
    ),
    "return_dict": Refusal("the model returns an output object; leave it out", unless=(True, None)),
    "ignore_mismatched_sizes": Refusal("a tensor of another size is an error", unless=(False, None)),
    "tp_plan": Refusal("a model runs on one device; leave it out", unless=(None,)),
    "key_mapping": Refusal("tensors go by the checkpoint's names; leave it out", unless=(None,)),
    "generation_config": Refusal("set model.generation_config, or pass it to generate", unless=(None,)),
}
"""Argument -> the values that ask for nothing, and what to do for any other."""

HUB_ARGUMENTS = (
    "revision", "cache_dir", "token", "use_auth_token", "local_files_only", "force_download", "subfolder",
)  # fmt: skip
"""Arguments that say how a model is fetched; ``use_auth_token`` is the older name of ``token``."""

FREE_IN_CONFIG = {
    "use_cache", "torch_dtype", "dtype", "torchscript", "return_dict", "output_attentions", "output_hidden_states",
    "attn_implementation", "transformers_version", "name_or_path", "architectures", "auto_map", "pretraining_tp",
    "ipex_lookahead",
}  # fmt: skip
"""Keys of a config that change nothing of what a model computes here."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What the shared arguments of one call ask for.

    Attributes:
        hub: how the model is fetched.
        config: the caller's ``config``, or None; see :func:`check_config`.
        others: those that change nothing or that an engine looks at.
    """

    hub: HubOptions
    config: Any
    others: dict[str, Any]

    @property
    def dtype(self) -> Any:
        """``dtype``, or by its older name ``torch_dtype``."""
        return self.others.get("dtype", self.others.get("torch_dtype"))


def shared_arguments(method: str, given: Mapping[str, Any], own: Collection[str]) -> Shared:
    """Check the arguments that a loading method shares with transformers and ipex-llm.

    Args:
        method: its name, for messages.
        given: the arguments in addition to the method's own.
        own: the method's own arguments, for messages.

    Raises:
        InputError: an unknown argument, or a value that is not supported; the message names the alternative.
    """
    rest = dict(given)
    hub = _hub_options(rest)
    config = rest.pop("config", None)
    known = (*WITHOUT_EFFECT, *ONLY_DEFAULT)
    for name, value in rest.items():
        if name in ONLY_DEFAULT:
            refusal = ONLY_DEFAULT[name]
            if refusal.refuses(value):
                only = f"{method} takes {name}={refusal.unless[0]!r} only"
                raise InputError(f"{only}, not {value!r}", hint=refusal.reason)
        elif name not in WITHOUT_EFFECT:
            names = sorted({*own, *known, *HUB_ARGUMENTS, "config"})
            near = difflib.get_close_matches(name, names, 1, 0.6)
            said = f"did you mean {near[0]!r}?" if near else f"its own arguments are {', '.join(own)}"
            raise InputError(f"{method} does not know {name!r}; {said}", hint=f"it accepts {', '.join(names)}")
    return Shared(hub, config, rest)


def own_arguments(method: Callable[..., Any]) -> tuple[str, ...]:
    """The names of a method's own keyword arguments."""
    return tuple(p.name for p in inspect.signature(method).parameters.values() if p.kind is p.KEYWORD_ONLY)


def wanted_format(load_in_low_bit: str | None, *, load_in_4bit: bool = False, load_in_8bit: bool = False) -> str | None:
    """The format that the three ways of naming one agree on, or None. Raises InputError where they do not agree."""
    given = {"load_in_low_bit": load_in_low_bit}
    given |= {"load_in_4bit": "sym_int4"} if load_in_4bit else {}
    given |= {"load_in_8bit": "sym_int8"} if load_in_8bit else {}
    found = {name: value for name, value in given.items() if value is not None}
    if len(set(found.values())) > 1:
        (first, low), (second, high) = list(found.items())[:2]
        raise InputError(f"{second} means {high}, but {first} is {low!r}; pass one of them")
    return next(iter(found.values()), None)


def check_config(config: Any, path: Path) -> None:
    """Check that a caller's ``config`` equals the checkpoint's own, which is the one that is used.

    Args:
        config: a transformers config, a dict, or the path of a folder or ``config.json``; None passes.
        path: the checkpoint.

    Raises:
        InputError: it differs in a key that could change what the model computes; the message names it.
    """
    if config is None:
        return
    if not path.is_dir():
        raise InputError(f"config cannot be combined with {path}, which contains its own config; leave it out")
    raw = dict(read_json(path / "config.json"))
    if isinstance(config, str | os.PathLike):
        place = given_path(config)
        wanted, has = dict(read_json(place if place.is_file() else place / "config.json")), raw
    elif isinstance(config, Mapping):
        wanted, has = dict(config), raw
    elif hasattr(config, "to_dict") and hasattr(type(config), "from_dict"):
        wanted, has = config.to_dict(), type(config).from_dict(json.loads(json.dumps(raw))).to_dict()
        has["model_type"] = raw.get("model_type")
    else:
        raise InputError(f"config is a {type(config).__name__}; it must be a transformers config, a dict or a path")
    differing = _differing(wanted, has)
    if not any(wanted.get(key) is not None and has.get(key) is not None for key in differing):  # what one leaves out
        one, other = _with_defaults(wanted), _with_defaults(has)
        if one is not None and other is not None:
            wanted, has = one, other
            differing = _differing(wanted, has)
    if differing:
        key = differing[0]
        raise InputError(
            f"config has {key}={wanted.get(key)!r}, and the checkpoint {key}={has.get(key)!r}; the checkpoint's"
            " own config is what is used",
            hint=f"change {key} in a copy of {path.name}/config.json, or leave config out",
        )


def _differing(wanted: Mapping[str, Any], has: Mapping[str, Any]) -> list[str]:
    """The keys in which two configs do not say the same, ``model_type`` first."""
    keys = ("model_type", *sorted({*wanted, *has} - FREE_IN_CONFIG))
    return [key for key in keys if not key.startswith("_") and wanted.get(key) != has.get(key)]


def _with_defaults(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """A config with what its family takes for granted; None where transformers does not take it for one of a family."""
    from transformers import CONFIG_MAPPING

    plain = {key: value for key, value in config.items() if key not in FREE_IN_CONFIG}
    try:
        family = CONFIG_MAPPING[plain["model_type"]]
        filled: dict[str, Any] = family.from_dict(json.loads(json.dumps(plain, default=str))).to_dict()
    except Exception:  # whatever the code of any family makes of values that it does not expect
        return None
    return {**filled, "model_type": plain["model_type"]}


def _hub_options(rest: dict[str, Any]) -> HubOptions:
    """Take the hub's arguments out of ``rest``."""
    taken = {name: rest.pop(name) for name in HUB_ARGUMENTS if name in rest}
    older = taken.pop("use_auth_token", None)
    token = taken.pop("token", None)
    if older is not None and token is not None and older != token:
        raise InputError("token and its older name use_auth_token differ; pass token alone")
    kinds: dict[str, tuple[type, ...]] = {
        "revision": (str,), "cache_dir": (str, os.PathLike), "subfolder": (str,),
        "local_files_only": (bool,), "force_download": (bool,),
    }  # fmt: skip
    token = older if token is None else token
    if token is not None and not isinstance(token, str | bool):
        raise InputError(f"token is a {type(token).__name__}; it must be text, True or False")
    options: dict[str, Any] = {}
    for name, value in taken.items():
        if value is None:
            continue
        if not isinstance(value, kinds[name]):
            allowed = "True or False" if kinds[name] == (bool,) else "text"
            raise InputError(f"{name} is {value!r}; it must be {allowed}")
        options[name] = str(value) if name == "cache_dir" else value
    return HubOptions(token=token, **options)
