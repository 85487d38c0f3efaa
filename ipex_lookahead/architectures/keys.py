"""Declaration of the keys of a family's files: each is used, neutral (with the reason), or refused.

Ignoring a key that changes the computation would produce wrong output without an error. Therefore each key that the
family's transformers classes read is listed in one of the three tables of its ``ConfigKeys``, and each key that
llama.cpp's loader reads for the architecture in its ``GgufKeys``. Tests check that the tables are complete.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ipex_lookahead.architectures.hparams import FLOAT_ORIGINAL, SIZES, Check, Source, shown
from ipex_lookahead.errors import UnsupportedModelError
from ipex_lookahead.files.refusal import Refusal

GIVEN = frozenset({
    "architectures", "model_type", "dtype", "torch_dtype", *SIZES,
    "rope_scaling", "rope_parameters", "original_max_position_embeddings",
    "bos_token_id", "eos_token_id", "pad_token_id",
})  # fmt: skip
"""Keys that every family uses; ``config_json.py`` reads and checks them."""

LOCAL_THETA = "rope_local_base_freq"
"""Key for the rope base of layers with a window, used by families with two kinds of rope. Files have it under this name
or as ``rope_parameters.sliding_attention.rope_theta``."""

LOCAL_SHARE = "local_partial_rotary_factor"
"""Key for the rotated part of heads in layers with a window, used by families with two kinds of rope that rotate parts.
Files have it as ``rope_parameters.sliding_attention.partial_rotary_factor``."""

LAYER_THETA = "layer_rope_theta"
"""Key for the rope base of each layer, 0 for layers without rope."""

NEUTRAL: Mapping[str, str] = {
    "attention_dropout": "zero outside training",
    "attn_implementation": "the kernel for the same attention",
    "chunk_size_feed_forward": "no decoder here has a chunked feed-forward; it saves memory elsewhere",
    "compile_config": "how torch compiles, not what",
    "default_theta": "transformers' own constant, 10000, as here",
    "distributed_config": "the placement of weights",
    "decoder_start_token_id": "for encoder-decoder models",
    "experts_implementation": "the kernel for the same experts",
    "finetuning_task": "origin of the checkpoint",
    "fusion_config": "the fusion of kernels, not what they compute",
    "gradient_checkpointing": "training only",
    "id2label": "for classifiers",
    "initializer_range": "for weights that are not in a file",
    "is_decoder": "every family here is a decoder",
    "label2id": "for classifiers",
    "loss_type": "training only",
    "name_or_path": "origin of the checkpoint",
    "num_labels": "for classifiers",
    "number_of_conv_states": "how transformers stores the inputs of convolutions",
    "output_attentions": "additional outputs",
    "output_hidden_states": "additional outputs",
    "prefix": "text that a pipeline puts before a prompt",
    "problem_type": "for classifiers",
    "return_dict": "the type of the output",
    "sep_token_id": "used in a warning about padding only",
    "task_specific_params": "settings of pipelines",
    "tf_legacy_loss": "training only",
    "tie_encoder_decoder": "for encoder-decoder models",
    "tie_last_hidden_states": "additional outputs",
    "tokenizer_class": "the tokenizer's own files define it",
    "torchscript": "how torch runs the model, not what it computes",
    "transformers_version": "the writer of the file",
    "use_bfloat16": "for TensorFlow",
    "use_cache": "whether keys and values are cached or recomputed, with the same result",
}
"""Keys without effect on the logits of any family -> reason. Generation settings (``max_length``, ``temperature``, ...)
in config.json have no effect either: they belong into ``generation_config.json``."""

REFUSED: Mapping[str, Refusal] = {
    "add_cross_attention": Refusal("requires attention to an encoder", unless=(None, False)),
    "attention_chunk_size": Refusal("splits the attention into chunks", unless=(None,)),
    "cross_attention_hidden_size": Refusal("requires attention to an encoder", unless=(None,)),
    "draft_vocab_size": Refusal(
        "makes this a drafting head instead of a model",
        unless=(None,),
        hint="give the folder of the model that it drafts for",
    ),
    "is_causal": Refusal("lets tokens attend to later ones", unless=(True,)),
    "is_encoder_decoder": Refusal("requires an encoder", unless=(None, False)),
    "kv_sharing_modes": Refusal("makes layers use the keys and values of others", unless=(None,)),
    "partial_rotary_factor": Refusal(
        "rotates a part of each head; depending on version and rope type, transformers ignores it in this family or "
        "fails, whereas other programs apply it",
        unless=(None, 1),
    ),
    "per_layer_config": Refusal("changes sizes or options per layer", unless=(None, {}, [])),
    "pruned_heads": Refusal("removes attention heads", unless=(None, {}, [])),
    "quantization_config": Refusal(
        "describes weights that are already quantized, in an unsupported format", unless=(None,), hint=FLOAT_ORIGINAL
    ),
    "sliding_window": Refusal(
        "limits the attention window, which has no effect for this family in transformers", unless=(None,)
    ),
    "transformers_weights": Refusal(
        "names another weights file", unless=(None, "model.safetensors", "model.safetensors.index.json")
    ),
}
"""Keys that change the computation in a way that is not supported, unless a family uses them."""


@dataclass(frozen=True, slots=True)
class ConfigKeys:
    """The keys of a family's ``config.json``; ``NEUTRAL`` and ``REFUSED`` apply to keys that the family does not use.

    Attributes:
        used: key -> check, in addition to ``GIVEN``.
        defaults: defaults in the family's transformers config class. A key of ``SIZES`` without default is required,
            except ``num_key_value_heads`` (the number of heads) and ``head_dim`` (the hidden size over the heads).
        flat_rope: True if a rope object without layer kinds applies to ``full_attention`` layers, and its base to all
            layers.
        nullable: used keys for which null is a value of its own instead of the default.
        neutral, refused: further keys of both kinds.
        check: checks keys against each other, and may write defaults into the config.
        inside: key of the object with all keys (``text_config``), for parts of multimodal models.
        parts: ``model_type`` of the part -> keys of that family, which apply inside; the tables here apply to the top
            level. The first one is the default.
        family: family of a part with a ``model_type`` that is not a family.
        outside: True if the part's keys may be at the top level when there is no object ``inside``.
        outer: keys of the part that are taken from the top level.
    """

    used: Mapping[str, Check] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    flat_rope: bool = False
    nullable: Collection[str] = ()
    neutral: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, Refusal] = field(default_factory=dict)
    check: Callable[[dict[str, Any], Source], None] = lambda config, source: None
    inside: str = ""
    parts: Mapping[str, ConfigKeys] = field(default_factory=dict)
    family: str = ""
    outside: bool = False
    outer: Collection[str] = ()

    def all_neutral(self) -> dict[str, str]:
        """Return all keys without effect on this family's logits -> reason."""
        taken = {*self.used, *self.refused}
        return {key: why for key, why in {**NEUTRAL, **self.neutral}.items() if key not in taken}

    def all_refused(self) -> dict[str, Refusal]:
        """Return all refused keys."""
        parts = self.parts.values() if self.outside else ()
        taken = {*self.used, *self.neutral, *(key for part in parts for key in part.used)}
        return {key: refusal for key, refusal in {**REFUSED, **self.refused}.items() if key not in taken}

    def refuse(self, raw: Mapping[str, Any], source: Source) -> None:
        """Raise UnsupportedModelError for the first key of ``raw`` that is refused."""
        refuse(raw, source, self.all_refused())


def refuse(raw: Mapping[str, Any], source: Source, refused: Mapping[str, Refusal]) -> None:
    """Raise UnsupportedModelError for the first key of ``raw`` that is refused."""
    for key, refusal in refused.items():
        if key in raw and refusal.refuses(raw[key]):
            allowed = " or ".join("null" if value is None else str(value).lower() for value in refusal.unless)
            raise UnsupportedModelError(
                f"{source.file}: {source.spelling(key)} is {shown(raw[key])}, which {refusal.reason}; it must be"
                f" {allowed}, or absent",
                hint=refusal.hint,
            )


class GgufSource(Protocol):
    """The view of a GGUF file for families: metadata and tensor table, without tensor values."""

    path: Any

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Key -> value."""
        ...

    @property
    def offsets(self) -> Mapping[str, int]:
        """Key -> byte offset of its value."""
        ...

    @property
    def tensors(self) -> Mapping[str, Any]:
        """Name -> entry of the table, with a ``shape``."""
        ...

    def scalar(self, key: str, default: Any = None) -> Any:
        """Return a number, bool or string; raise ModelFormatError for an array."""
        ...

    def error(self, field: str, offset: int | None, problem: str, *, hint: str = "") -> Exception:
        """Return an error about this file."""
        ...


GGUF_NEUTRAL: Mapping[str, str] = {
    "attention.key_length_swa": "the head size of layers with a window, if different",
    "attention.layer_norm_epsilon": "for layer norms, which this architecture lacks",
    "attention.value_length_swa": "the head size of layers with a window, if different",
    "classifier.output_labels": "for classifiers; their tensors are refused",
    "classifier.pooling_type": "for classifiers; their tensors are refused",
    "pooling_type": "pooling of embedding models",
    "rope.dimension_count_swa": "the rotated part of heads in layers with a window, if different",
    "rope.scaling.finetuned": "information on training with the longer context",
    "tensor_data_layout": "the layout of the first converters, which is the architecture's own",
}
"""Keys without effect on the logits of any architecture -> reason; without prefix (``llama.``), here and below."""

GGUF_REFUSED: Mapping[str, Refusal] = {
    "attention.causal": Refusal(unless=(1,)),
    "attention.clamp_kqv": Refusal(unless=(0,)),
    "attention.max_alibi_bias": Refusal(unless=(0,)),
    "attention.output_scale": Refusal(unless=(0, 1)),
    "attention.scale": Refusal(unless=(0,)),
    "attention.shared_kv_layers": Refusal(unless=(0,)),
    "attention.sliding_window": Refusal(unless=(0,)),
    "attention.temperature_scale": Refusal(unless=(0,)),
    "attention.value_scale": Refusal(unless=(0, 1)),
    "attn_logit_softcapping": Refusal(unless=(0,)),
    "embedding_length_out": Refusal(unless=(0,)),
    "embedding_scale": Refusal(unless=(0, 1)),
    "expert_count": Refusal(unless=(0,)),
    "expert_group_count": Refusal(unless=(0,)),
    "expert_group_used_count": Refusal(unless=(0,)),
    "expert_used_count": Refusal(unless=(0,)),
    "final_logit_softcapping": Refusal(unless=(0,)),
    "logit_scale": Refusal(unless=(0, 1)),
    "nextn_predict_layers": Refusal(unless=(0,)),
    "residual_scale": Refusal(unless=(0, 1)),
    "rope.scaling.alpha": Refusal(unless=(0,)),
    "rope.scaling.yarn_attn_factor": Refusal(unless=(1,)),
    "rope.scaling.yarn_ext_factor": Refusal(unless=(-1, 1)),
    "rope.scaling.yarn_log_multiplier": Refusal(unless=(0,)),
    "use_parallel_residual": Refusal(unless=(0,)),
}
"""Keys that change the computation -> harmless values, unless an architecture uses them."""

GGUF_GIVEN = frozenset({
    "vocab_size", "context_length", "embedding_length", "block_count", "feed_forward_length",
    "attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "rope.dimension_count", "rope.freq_base", "rope.scale_linear", "rope.scaling.type", "rope.scaling.factor",
    "rope.scaling.original_context_length", "rope.scaling.attn_factor", "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
})  # fmt: skip
"""Keys that every architecture uses; ``gguf_config.py`` reads and checks them."""
GGUF_VECTORS = frozenset({"pooling_type", "classifier.output_labels"})
"""Keys of embedding models and rerankers, which ``embedding/`` reads; text generation does not use them."""


@dataclass(frozen=True, slots=True)
class GgufKeys:
    """The keys of a family's GGUF files, in terms of its config.

    Attributes:
        architecture: ``general.architecture``.
        class_name: transformers' model class, for the config's ``architectures``.
        used: key of the config -> key of the file, in addition to ``GGUF_GIVEN``; checked by ``ConfigKeys.used``. A
            window or logit cap of 0 means none. ``rope_scaling.X`` is a parameter of yarn.
        constants: values that the architecture implies.
        neutral, refused: further keys of both kinds. Harmless values are numbers, true being 1; without any, the key
            must be absent.
        complete: fills in values that follow from tensors or from several keys.
        also: further values of ``general.architecture`` for files with the same keys.
        without_attention: value in ``layer_types`` for layers with 0 key heads in the file, the others being
            "full_attention"; "" if all layers have the same number.
        by_layer: keys of the config that a file may give per layer, with 0 for layers without the feature and one
            number for the others; ``complete`` reads the list. If all are 0, the family's default applies.
        rotates: False if attention has no rope, so that keys of rope have no effect.
        least_of: sizes that files may give per layer; the config first gets the minimum, then ``complete`` reads all.
        still_pairs: True if ``rope_freqs`` only marks pairs that are not rotated (divisor 1e30).
        claims: decides which files of this architecture belong to this family, if families share one.
        unused_tensors: suffixes of unused tensors that old converters wrote.
    """

    architecture: str
    class_name: str
    used: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    neutral: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, Refusal] = field(default_factory=dict)
    complete: Callable[[GgufSource, dict[str, Any]], None] = lambda file, config: None
    also: tuple[str, ...] = ()
    without_attention: str = ""
    by_layer: tuple[str, ...] = ()
    rotates: bool = True
    least_of: tuple[str, ...] = ()
    still_pairs: bool = False
    claims: Callable[[GgufSource], bool] = lambda file: True
    unused_tensors: tuple[str, ...] = (".attn_rot_embd.weight", ".rope_freqs.weight")

    @property
    def architectures(self) -> tuple[str, ...]:
        """All values of ``general.architecture``."""
        return (self.architecture, *self.also)

    def of(self, file: GgufSource) -> GgufKeys:
        """Return the keys for the architecture of ``file``, which is the prefix of its keys."""
        return replace(self, architecture=file.scalar("general.architecture"), also=())

    def all_neutral(self) -> dict[str, str]:
        """Return all keys without effect on this architecture's logits -> reason."""
        taken = {*self.used.values(), *self.refused}
        return {key: why for key, why in {**GGUF_NEUTRAL, **self.neutral}.items() if key not in taken}

    def all_refused(self) -> dict[str, Refusal]:
        """Return all refused keys."""
        taken = {*self.used.values(), *self.neutral}
        return {key: refusal for key, refusal in {**GGUF_REFUSED, **self.refused}.items() if key not in taken}

    def refuse(self, file: GgufSource) -> None:
        """Raise UnsupportedModelError for the first key that is refused."""
        for name, refusal in self.all_refused().items():
            key = f"{self.architecture}.{name}"
            if key not in file.metadata:
                continue
            if not refusal.unless:
                raise UnsupportedModelError(f"{file.path}: has {key}, which is not supported")
            if refusal.refuses(_as_number(value := file.scalar(key))):
                raise UnsupportedModelError(
                    f"{file.path}: {key} is {shown(value)}, which is not supported; it must be "
                    f"{' or '.join(f'{one:g}' for one in refusal.unless)}, or absent"
                )

    def unknown(self, metadata: Mapping[str, Any]) -> list[str]:
        """Return the architecture's unknown keys in the file's order; they may be newer options."""
        prefix = f"{self.architecture}."
        known = {*GGUF_GIVEN, *GGUF_VECTORS, *self.used.values(), *self.all_neutral(), *self.all_refused()}
        return [key for key in metadata if key.startswith(prefix) and key.removeprefix(prefix) not in known]


class Family(Protocol):
    """The interface of a family's row or file."""

    @property
    def KEYS(self) -> ConfigKeys:  # noqa: N802 - a constant of a file
        """Keys of its config.json."""
        ...

    @property
    def GGUF(self) -> GgufKeys | None:  # noqa: N802
        """Its GGUF files; None if there are none."""
        ...

    @property
    def spec(self) -> Callable[[dict[str, Any]], Any]:
        """Function that returns the ``ModelSpec`` for a checked config."""
        ...


def _as_number(value: Any) -> Any:
    return int(value) if isinstance(value, bool) else value
