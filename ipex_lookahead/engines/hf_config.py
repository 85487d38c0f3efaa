"""transformers configs of known families, made of our checked configs. ``foreign.py`` has other families."""

from __future__ import annotations

import logging
from collections.abc import Collection
from os import PathLike
from typing import Any

from ipex_lookahead.architectures.keys import LOCAL_SHARE, LOCAL_THETA
from ipex_lookahead.checkpoints import Checkpoint
from ipex_lookahead.engines.foreign import said
from ipex_lookahead.errors import UnsupportedModelError, arg

_log = logging.getLogger(__name__)


def transformers_config(config: dict[str, Any], path: str | PathLike[str], *, strict: bool = True) -> Any:
    """Return our checked config as transformers' own class, which pipelines and streamers read.

    Args:
        config: the checked config of a checkpoint.
        path: the checkpoint, for messages.
        strict: raise for a config that the class refuses. False: log a warning and return an object with the config's
            values without the class's checks, since transformers does not run the model.

    Raises UnsupportedModelError if ``strict``, also for a family that this release of transformers does not know.
    """
    try:
        return config_object(config, checked=True)
    except UnsupportedModelError:
        if strict:
            raise
        return config_object(config, checked=False)
    except Exception as error:  # the checks of any family's class, and huggingface_hub's wrappers of them
        problem = f"{path}: transformers' {config['model_type']} refuses this config: {said(error)}"
        if strict:
            raise UnsupportedModelError(problem, hint=f"use {arg('engine', 'native')}") from None
        _log.warning("%s; the model runs without transformers, and model.config is not checked by it", problem)
    return config_object(config, checked=False)


def config_object(config: dict[str, Any], *, checked: bool) -> Any:
    """Return the object; ``checked``: run the checks of transformers' class, which may raise anything."""
    from ipex_lookahead.system.compat import family_config, llama_config

    values = {k: v for k, v in config.items() if k not in ("model_type", "rope_theta", "rope_scaling")}
    scaling = dict(config.get("rope_scaling") or {})
    if scaling.get("rope_type") == "freq_factors":  # no name for these in transformers; the engine has the numbers
        scaling = {}
    if scaling == {"rope_type": "proportional", "partial_rotary_factor": 1.0}:  # all pairs turn, as in plain rope
        scaling = {}
    if config["model_type"] == "llama":
        return llama_config(values, scaling or {"rope_type": "default"}, config["rope_theta"], checked=checked)
    if scaling.get("rope_type") == "longrope":  # transformers' Phi-3 has this number outside, where it goes first
        values["original_max_position_embeddings"] = scaling["original_max_position_embeddings"]
    local, share = values.pop(LOCAL_THETA, None), values.pop(LOCAL_SHARE, None)
    if share is not None:  # each of the two ropes has its own
        part = "partial_rotary_factor"
        scaling = {**(scaling or {"rope_type": "default"}), part: values.pop(part)}
    near = {} if share is None else {"partial_rotary_factor": share}
    theta = config["rope_theta"]
    return family_config(config["model_type"], values, scaling, theta, local, near, checked=checked)


def config_to_save(config: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return the config to save with weights of these names: a separately packed lm_head is not tied."""
    if "lm_head.weight" not in names or not any(name.endswith("embed_tokens.weight") for name in names):
        return config
    untied = {"tie_word_embeddings": False}  # explicit, since several families tie by default
    part = {"text_config": {**config["text_config"], **untied}} if isinstance(config.get("text_config"), dict) else {}
    return {**config, **untied, **part}


def generation_defaults(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the checkpoint's defaults for ``generate``, by the names of transformers' GenerationConfig."""
    tokens = {k: v for k, v in checkpoint.config.items() if k in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return {**tokens, **checkpoint.generation_config}
