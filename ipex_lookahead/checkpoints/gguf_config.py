"""Conversion of a GGUF file's metadata to a config with Hugging Face's keys, as the file's family declares them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures import family
from ipex_lookahead.architectures.hparams import (
    DIVISORS,
    MAX_CONTEXT,
    MAX_HEAD_DIM,
    MAX_LAYERS,
    ROPE,
    SIZES,
    Source,
    check_rope,
    check_rope_complete,
    check_sizes,
    integer,
    number,
    shown,
    token_id,
)
from ipex_lookahead.architectures.keys import ConfigKeys, GgufKeys
from ipex_lookahead.checkpoints.gguf_parts import GgufParts
from ipex_lookahead.errors import UnsupportedModelError

ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors that belong to the config."""
_KEYS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "vocab_size": "vocab_size",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "rope_scaling": "rope.scaling.type",
    "rope_scaling.factor": "rope.scaling.factor",
    "rope_scaling.original_max_position_embeddings": "rope.scaling.original_context_length",
    "rope_scaling.attention_factor": "rope.scaling.attn_factor",
    "rope_scaling.beta_fast": "rope.scaling.yarn_beta_fast",
    "rope_scaling.beta_slow": "rope.scaling.yarn_beta_slow",
}
"""Key of the config -> key of the file, without the architecture prefix."""
_IDS = {
    "bos_token_id": "tokenizer.ggml.bos_token_id",
    "eos_token_id": "tokenizer.ggml.eos_token_id",
    "pad_token_id": "tokenizer.ggml.padding_token_id",
    "unk_token_id": "tokenizer.ggml.unknown_token_id",
    "eot_token_id": "tokenizer.ggml.eot_token_id",
    "eom_token_id": "tokenizer.ggml.eom_token_id",
}
_ENDS = {"gemma4": frozenset({"<eos>", "<turn|>", "<|tool_response>"})}
"""Architecture -> tokens that end an answer according to the original generation_config.json; files list only one."""
_SAMPLING = {"temperature": "temp", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
_SAMPLED = {
    "temperature": number(-1e6, 1e6),
    "top_k": integer(-(2**31), 2**31 - 1),
    "top_p": number(0, 1),
    "min_p": number(0, 1),
}
"""Key of the generation config -> check; ``_SAMPLING`` holds the part of the file's key after ``general.sampling.``."""
_PER_LAYER = (
    "intermediate_size", "num_attention_heads", "num_key_value_heads", "num_experts_per_tok", "moe_intermediate_size",
)  # fmt: skip
_OPTIONAL = ("num_key_value_heads", "head_dim", "vocab_size", "rope_theta")
_ZERO_IS_NONE = ("sliding_window", "final_logit_softcapping", "moe_latent_size")
_SCALINGS = ("none", "linear", "yarn", "longrope")


def gguf_config(file: GgufParts, model_type: str) -> dict[str, Any]:
    """Return the config of a GGUF file, with its tensor table already read, using Hugging Face's keys.

    Raises:
        ModelFormatError: if a key is missing or out of range.
        UnsupportedModelError: if the model is not supported.
    """
    declared = family(model_type)
    assert declared.GGUF is not None  # gguf_family selects only families with GGUF keys
    keys = declared.KEYS
    if keys.inside:  # files of multimodal models hold the text part
        keys = next(iter(keys.parts.values()))
        model_type = keys.family
    return config_by(file, model_type, keys, declared.GGUF.of(file))


def config_by(file: GgufParts, model_type: str, keys: ConfigKeys, gguf: GgufKeys) -> dict[str, Any]:
    """Return the config of a model with the given keys, see :func:`gguf_config`."""
    return _Reader(file, model_type, keys, gguf).config()


class _Reader:
    def __init__(self, file: GgufParts, model_type: str, keys: ConfigKeys, gguf: GgufKeys) -> None:
        self.file, self.model_type, self.keys, self.gguf = file, model_type, keys, gguf
        names = {**{ours: f"{gguf.architecture}.{key}" for ours, key in {**_KEYS, **gguf.used}.items()}, **_IDS}
        self.names = names
        self.source = Source.at(file.path, {ours: (theirs, file.offsets.get(theirs)) for ours, theirs in names.items()})

    def config(self) -> dict[str, Any]:
        file, source = self.file, self.source
        self.gguf.refuse(file)
        config: dict[str, Any] = {"architectures": [self.gguf.class_name], "model_type": self.model_type}
        config |= self.gguf.constants
        layers = integer(1, MAX_LAYERS)(source, "num_hidden_layers", file.metadata.get(self.names["num_hidden_layers"]))
        for key in (*SIZES, *self.gguf.used):
            if key in config or key.startswith("rope_scaling."):
                continue
            value = file.metadata.get(self.names[key])
            if value is None and key in SIZES and key not in _OPTIONAL:
                raise source.error(key, "is missing")
            if value is None:
                continue
            if key == "num_key_value_heads" and self.gguf.without_attention and isinstance(value, np.ndarray):
                kinds = (self.gguf.without_attention, "full_attention")
                config["layer_types"] = [kinds[int(count != 0)] for count in value]
                heads = value[value != 0] if value.any() else value[:1]
                value = self._same_in_all_layers(key, heads, len(heads))
            if key in self.gguf.by_layer and isinstance(value, np.ndarray) and len(value) == layers:
                if not value.any():
                    continue
                value = self._same_in_all_layers(key, value[value != 0], int(np.count_nonzero(value)))
            if key in _PER_LAYER and isinstance(value, np.ndarray):
                by_layer = key in self.gguf.least_of and len(value) == layers
                value = value.min().item() if by_layer else self._same_in_all_layers(key, value, layers)
            if key in _ZERO_IS_NONE and not isinstance(value, np.ndarray) and value == 0:
                value = None
            config[key] = _shortest(value)
        config.setdefault("rope_theta", 10000.0)
        if "vocab_size" not in config:
            config["vocab_size"] = self._embedding_rows()
        for key, check in self.keys.used.items():
            if key in self.gguf.used and key in config:
                config[key] = check(source, key, config[key])
        check_sizes(config, source)
        self._check_vocabulary(config)
        self._check_head_sizes(config)
        config["rope_scaling"] = self._rope_scaling(config) if self.gguf.rotates else None
        config["tie_word_embeddings"] = "output.weight" not in file.tensors
        self.gguf.complete(file, config)
        for key, value in self.keys.defaults.items():
            config.setdefault(key, value)
        self.keys.check(config, source)
        check_rope_complete(config, source)
        return config | self._token_ids(config)

    def _same_in_all_layers(self, key: str, values: npt.NDArray[np.generic], layers: int) -> Any:
        if len(values) != layers:
            raise self.source.error(key, f"has {len(values)} values for {layers} layers")
        if (values != values[0]).any():
            raise UnsupportedModelError(
                f"{self.file.path}: {self.names[key]} differs between layers, which is not supported"
            )
        return values[0].item()

    def _embedding_rows(self) -> int:
        if "token_embd.weight" not in self.file.tensors:
            raise self.file.error("token_embd.weight", None, "is missing from the file")
        return self.file.tensors["token_embd.weight"].shape[0]

    def _check_head_sizes(self, config: dict[str, Any]) -> None:
        """Check that keys and values have one size, and that whole heads or a known part of them are rotated.

        Families with latent attention check their own sizes.
        """
        if "kv_lora_rank" in self.keys.used:
            return
        prefix = self.gguf.architecture
        rotated = (f"{prefix}.rope.dimension_count",) if self.gguf.rotates else ()
        for key in (f"{prefix}.attention.value_length", *rotated):
            source = Source.at(self.file.path, {key: (key, self.file.offsets.get(key))})
            value = integer(1, MAX_HEAD_DIM)(source, key, self.file.metadata.get(key, config["head_dim"]))
            if key.endswith("dimension_count") and "partial_rotary_factor" in self.keys.used:
                if value > config["head_dim"]:
                    raise source.error(key, f"is {value}, more than the head size {config['head_dim']}")
                config["partial_rotary_factor"] = value / config["head_dim"]
            elif value != config["head_dim"]:
                raise UnsupportedModelError(
                    f"{self.file.path}: {key} is {value}, which must equal the head size {config['head_dim']}"
                )

    def _check_vocabulary(self, config: dict[str, Any]) -> None:
        """Check that the tokenizer's arrays match each other and the embedding; the tokenizer checks their content."""
        file, vocab = self.file, config["vocab_size"]
        key = "tokenizer.ggml.tokens"
        if key not in file.metadata:
            return
        tokens = file.metadata[key]
        if not isinstance(tokens, list) or not 0 < len(tokens) <= vocab:
            count = len(tokens) if isinstance(tokens, list) else "no"
            raise file.error(key, file.offsets[key], f"has {count} tokens; it must be an array of 1 to {vocab} strings")
        for name, kind in (("scores", np.floating), ("token_type", np.integer)):
            key = f"tokenizer.ggml.{name}"
            values = file.metadata.get(key)
            if values is None:
                continue
            if not isinstance(values, np.ndarray) or not np.issubdtype(values.dtype, kind):
                raise file.error(key, file.offsets[key], f"is not an array of {kind.__name__} numbers")
            if len(values) != len(tokens):
                raise file.error(key, file.offsets[key], f"has {len(values)} values for {len(tokens)} tokens")

    def _token_ids(self, config: dict[str, Any]) -> dict[str, Any]:
        check, metadata = token_id(config["vocab_size"]), self.file.metadata
        ids = {name: check(self.source, name, metadata[key]) for name, key in _IDS.items() if key in metadata}
        # The end-of-turn token of a chat model ends generation as well; configs list it among the eos ids.
        ends = [ids[n] for n in ("eos_token_id", "eot_token_id", "eom_token_id") if n in ids]
        if named := _ENDS.get(self.gguf.architecture):
            ends += [i for i, token in enumerate(metadata.get("tokenizer.ggml.tokens", ())) if token in named]
        ends = list(dict.fromkeys(ends))
        found: dict[str, Any] = {name: ids[name] for name in ("bos_token_id", "pad_token_id") if name in ids}
        if ends:
            found["eos_token_id"] = ends[0] if len(ends) == 1 else ends
        return found

    # ---- rope --------------------------------------------------------------------------------------------------------

    def _rope_scaling(self, config: dict[str, Any]) -> dict[str, Any] | None:
        file, source, prefix = self.file, self.source, self.gguf.architecture
        kind = file.scalar(f"{prefix}.rope.scaling.type", "linear")  # llama.cpp's default
        factor = file.scalar(f"{prefix}.rope.scaling.factor")
        if factor is None:
            factor = file.scalar(f"{prefix}.rope.scale_linear")  # the spelling before there was a type
        if kind not in _SCALINGS:
            raise UnsupportedModelError(
                f"{file.path}: {prefix}.rope.scaling.type is {shown(kind)}; choose one of {', '.join(_SCALINGS)}"
            )
        if "rope_factors_long.weight" in file.tensors or "rope_factors_short.weight" in file.tensors:
            return self._long_rope(config)
        if kind == "longrope":
            raise UnsupportedModelError(
                f"{file.path}: {prefix}.rope.scaling.type is 'longrope', but rope_factors_long.weight is missing"
            )
        scaled = kind != "none" and factor not in (None, 0, 1)
        attention_factor = file.scalar(f"{prefix}.rope.scaling.attn_factor", 1.0)
        if attention_factor != 1 and not (scaled and kind == "yarn"):
            # llama.cpp applies it to cos and sin for all types, Hugging Face has an equivalent for yarn only.
            raise UnsupportedModelError(
                f"{file.path}: {prefix}.rope.scaling.attn_factor is {shown(attention_factor)} without yarn scaling, "
                "which is not supported; it must be 1 or absent"
            )
        if "rope_freqs.weight" in file.tensors:
            if scaled:
                raise UnsupportedModelError(f"{file.path}: has rope_freqs.weight and rope scaling of type {kind!r}")
            if self.gguf.still_pairs:
                return self._still_pairs(config)
            return {"rope_type": "freq_factors", "factors": self._divisors("rope_freqs.weight", config)}
        if not scaled:
            return None
        scaling: dict[str, Any] = {"rope_type": kind, "factor": _shortest(factor)}
        if kind == "yarn":
            more = [key.removeprefix("rope_scaling.") for key in self.gguf.used if key.startswith("rope_scaling.")]
            for name in ("original_max_position_embeddings", "beta_fast", "beta_slow", *more):
                if (value := file.scalar(self.names[f"rope_scaling.{name}"])) is not None:
                    scaling[name] = _shortest(value)
            if attention_factor != 1:
                attention_factor = ROPE["attention_factor"](source, "rope_scaling.attention_factor", attention_factor)
                factor = ROPE["factor"](source, "rope_scaling.factor", factor)
                # llama.cpp multiplies YaRN's own factor by it; Hugging Face's attention_factor replaces YaRN's factor.
                scaling["attention_factor"] = attention_factor * (0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0)
        scaling.setdefault("original_max_position_embeddings", config["max_position_embeddings"])
        self._check_original(scaling)
        return check_rope(scaling, config["rope_theta"], source)

    def _still_pairs(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return the share of rotated pairs (Gemma 4): their divisors are 1, those of the others 1e30."""
        name, size = "rope_freqs.weight", config["head_dim"]
        values = self._divisors(name, config, (1.0, 2e30))
        turning = values.count(1.0)
        if any(one != 1 for one in values[:turning]) or any(one < 1e29 for one in values[turning:]):
            raise UnsupportedModelError(
                f"{self.file.path}: {name} must divide by 1 and, for the remaining pairs, by 1e30; other divisors are"
                " not supported"
            )
        share = turning / (size // 2)
        if int(share * size // 2) < turning:  # the division was rounded down
            share = math.nextafter(share, 2.0)
        return {"rope_type": "proportional", "partial_rotary_factor": share}

    def _long_rope(self, config: dict[str, Any]) -> dict[str, Any] | None:
        """Return divisors for short and long contexts (Phi), and the factor on cos and sin."""
        original = self.file.scalar(self.names["rope_scaling.original_max_position_embeddings"])
        scaling: dict[str, Any] = {
            "rope_type": "longrope",
            "short_factor": self._divisors("rope_factors_short.weight", config),
            "long_factor": self._divisors("rope_factors_long.weight", config),
            "original_max_position_embeddings": config["max_position_embeddings"] if original is None else original,
        }
        if (given := self.file.scalar(self.names["rope_scaling.attention_factor"])) is not None:
            scaling["attention_factor"] = _shortest(given)
        self._check_original(scaling)
        return check_rope(scaling, config["rope_theta"], self.source)

    def _check_original(self, scaling: dict[str, Any]) -> None:
        name = "original_max_position_embeddings"
        integer(1, MAX_CONTEXT)(self.source, f"rope_scaling.{name}", scaling[name])

    def _divisors(self, name: str, config: dict[str, Any], bounds: tuple[float, float] = DIVISORS) -> list[float]:
        """Read a tensor of divisors of rope's frequencies, one per pair of rotated dimensions."""
        file, pairs = self.file, int(config["head_dim"] * config.get("partial_rotary_factor", 1.0)) // 2
        if name not in file.tensors:
            raise file.error(name, None, "is missing from the file")
        tensor = file.tensors[name]
        if tensor.shape != (pairs,) or tensor.type.name != "F32":
            raise tensor.error(
                tensor.entry, f"is {tensor.type.name} {list(tensor.shape)}; it must be F32 [{pairs}], half a head"
            )
        values = np.frombuffer(tensor.file.read(tensor.offset, tensor.nbytes, name), np.float32)
        low, high = bounds
        wrong = ~((values >= low) & (values <= high))  # NaN is neither
        if wrong.any():
            at = int(np.argmax(wrong))
            raise tensor.error(tensor.offset + 4 * at, f"divisor {at} is {values[at]}; it must be {low:g} to {high:g}")
        return [float(value) for value in values]


def gguf_sampling(file: GgufParts) -> dict[str, Any]:
    """Return ``general.sampling.*`` with transformers' keys, which converters take from ``generation_config.json``.

    In llama.cpp a ``temp`` of 0 or less is greedy decoding, and a ``top_k`` of 0 or less disables the filter. Its other
    samplers, and its penalty over the last 64 tokens, have no equivalent here and are ignored.

    Raises:
        ModelFormatError: if a value is out of range.
    """
    keys = {name: f"general.sampling.{key}" for name, key in _SAMPLING.items()}
    source = Source.at(file.path, {name: (key, file.offsets.get(key)) for name, key in keys.items()})
    given = {name: file.scalar(key) for name, key in keys.items() if key in file.metadata}
    found = {name: _SAMPLED[name](source, name, _shortest(value)) for name, value in given.items()}
    if found.get("temperature", 1.0) < 1e-6:
        return {"do_sample": False}
    if "top_k" in found:
        found["top_k"] = max(0, found["top_k"])
    return {"do_sample": True, **found} if found else {}


def gguf_suppressed(file: GgufParts, vocab: int) -> dict[str, Any]:
    """Return ``suppress_tokens``, which converters take from ``generation_config.json``; {} without any.

    Ids outside the vocabulary are left out, as in llama.cpp.

    Raises:
        ModelFormatError: if the file has something other than a list of integers.
    """
    key = "tokenizer.ggml.suppress_tokens"
    tokens = file.metadata.get(key, np.zeros(0, np.int32))
    if not isinstance(tokens, np.ndarray) or tokens.dtype.kind not in "iu":
        raise file.error(key, file.offsets.get(key), f"is {shown(tokens)}; it must be a list of token ids")
    found = [int(one) for one in tokens if 0 <= one < vocab]
    return {"suppress_tokens": found} if found else {}


def _shortest(value: Any) -> Any:
    """Return a float32 as the shortest equal decimal (1e-05, not 9.999999747378752e-06), as configs have it."""
    return float(str(np.float32(value))) if isinstance(value, float) and abs(value) < 3e38 else value
