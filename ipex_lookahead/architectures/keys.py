"""How a family declares the keys of its files: every one used, without effect (and why), or refused.

A key that changes what a model computes must never be passed over: the model would answer, and wrongly. So each key
that the family's transformers config class, its bases and its model look at stands in one of the three tables of its
``ConfigKeys``, and each key that llama.cpp's loader reads for the architecture in one of its ``GgufKeys``; tests walk
both for keys that stand in none.
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
"""Keys that every family uses, read and checked by ``config_json.py``."""

LOCAL_THETA = "rope_local_base_freq"
"""The key that gets the base of rope in layers with a window, in a family that uses it because its two kinds of layers
have ropes of their own: files have it by itself, or as ``rope_parameters.sliding_attention.rope_theta``."""

NEUTRAL: Mapping[str, str] = {
    "attention_dropout": "zero outside training",
    "attn_implementation": "which kernel computes the same attention",
    "chunk_size_feed_forward": "no decoder here has a chunked feed-forward; a saving of memory elsewhere",
    "compile_config": "how torch compiles, not what",
    "default_theta": "transformers' own constant, 10000; ours too",
    "distributed_config": "where weights lie, not what they are",
    "decoder_start_token_id": "for encoders with decoders",
    "experts_implementation": "which kernel computes the same experts",
    "finetuning_task": "where the checkpoint came from",
    "fusion_config": "which kernels are fused, not what they compute",
    "gradient_checkpointing": "training only",
    "id2label": "for classifiers",
    "initializer_range": "for weights that no file gives",
    "is_decoder": "every family here is one, whatever this says",
    "label2id": "for classifiers",
    "loss_type": "training only",
    "name_or_path": "where the checkpoint came from",
    "num_labels": "for classifiers",
    "number_of_conv_states": "how transformers keeps what convolutions need",
    "output_attentions": "what is returned beside the logits",
    "output_hidden_states": "what is returned beside the logits",
    "prefix": "text that a pipeline puts before a prompt",
    "problem_type": "for classifiers",
    "return_dict": "the form of what is returned",
    "sep_token_id": "a warning about padding looks at it",
    "task_specific_params": "settings of pipelines",
    "tf_legacy_loss": "training only",
    "tie_encoder_decoder": "for encoders with decoders",
    "tie_last_hidden_states": "which hidden states are returned beside the logits",
    "tokenizer_class": "the tokenizer's own files say what it is",
    "torchscript": "how torch runs the model, not what it computes",
    "transformers_version": "who wrote the file",
    "use_bfloat16": "for TensorFlow",
    "use_cache": "whether keys and values are kept or computed again, to the same end",
}
"""Keys without effect on the logits of any family, and why. Settings of generation (``max_length``, ``temperature``,
...) in config.json have none either: they are ``generation_config.json``'s to make."""

REFUSED: Mapping[str, Refusal] = {
    "add_cross_attention": Refusal("asks for attention to an encoder", unless=(None, False)),
    "attention_chunk_size": Refusal("cuts the attention into chunks", unless=(None,)),
    "cross_attention_hidden_size": Refusal("asks for attention to an encoder", unless=(None,)),
    "draft_vocab_size": Refusal(
        "makes this a drafting head and no model",
        unless=(None,),
        hint="give the folder of the model that it drafts for",
    ),
    "is_causal": Refusal("lets every token see the ones behind it", unless=(True,)),
    "is_encoder_decoder": Refusal("asks for an encoder", unless=(None, False)),
    "kv_sharing_modes": Refusal("has layers use the keys and values of others", unless=(None,)),
    "partial_rotary_factor": Refusal(
        "rotates a part of each head; transformers takes no notice of it in this family or fails, by its version and "
        "the kind of rope, and other programs rotate a part",
        unless=(None, 1),
    ),
    "per_layer_config": Refusal("changes sizes or switches from layer to layer", unless=(None, {}, [])),
    "pruned_heads": Refusal("removes attention heads", unless=(None, {}, [])),
    "quantization_config": Refusal(
        "says that the weights are quantised already, in a format that is not read", unless=(None,), hint=FLOAT_ORIGINAL
    ),
    "sliding_window": Refusal(
        "limits how far attention reaches back, which this family's does not in transformers", unless=(None,)
    ),
    "transformers_weights": Refusal(
        "names another weights file", unless=(None, "model.safetensors", "model.safetensors.index.json")
    ),
}
"""Keys that change what a model computes in a way that is not there here, unless a family uses them."""


@dataclass(frozen=True, slots=True)
class ConfigKeys:
    """The keys of a family's ``config.json``. ``NEUTRAL`` and ``REFUSED`` hold for every family unless it uses one.

    Attributes:
        used: key -> check, besides ``GIVEN``.
        defaults: what the family's transformers config class takes for keys that are missing; one of ``SIZES`` that has
            no default must be there, but for ``num_key_value_heads`` (as many as heads) and ``head_dim`` (an even
            share of the hidden size).
        flat_rope: of two kinds of layers with ropes of their own: a rope object that names no kind is that of
            ``full_attention``, and its base all layers'.
        nullable: used keys for which null is a value of its own, not the default.
        neutral, refused: more of both.
        check: what the keys must be to each other; raises, and may write usual values into the config.
        inside: the object that holds all keys (``text_config``), where the family is a part of another model.
        parts: what that part may be, by its ``model_type``: the keys of that family hold inside, and the tables here
            for the whole. The first is meant where it names none.
        family: of a part whose ``model_type`` is no family's, the one that it is.
        outside: the part's keys may stand in the whole, where there is no object ``inside``.
        outer: keys of the part that the whole says.
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
        """Keys without effect on this family's logits, and why."""
        taken = {*self.used, *self.refused}
        return {key: why for key, why in {**NEUTRAL, **self.neutral}.items() if key not in taken}

    def all_refused(self) -> dict[str, Refusal]:
        """Keys that must be at their harmless values."""
        parts = self.parts.values() if self.outside else ()
        taken = {*self.used, *self.neutral, *(key for part in parts for key in part.used)}
        return {key: refusal for key, refusal in {**REFUSED, **self.refused}.items() if key not in taken}

    def refuse(self, raw: Mapping[str, Any], source: Source) -> None:
        """Raise UnsupportedModelError for the first key of ``raw`` that asks for what is not there here."""
        refuse(raw, source, self.all_refused())


def refuse(raw: Mapping[str, Any], source: Source, refused: Mapping[str, Refusal]) -> None:
    """Raise UnsupportedModelError for the first key of ``raw`` that is refused."""
    for key, refusal in refused.items():
        if key in raw and refusal.refuses(raw[key]):
            allowed = " or ".join("null" if value is None else str(value).lower() for value in refusal.unless)
            raise UnsupportedModelError(
                f"{source.file}: {source.spelling(key)} is {shown(raw[key])}, which {refusal.reason}; it must be"
                f" {allowed}, or not there",
                hint=refusal.hint,
            )


class GgufSource(Protocol):
    """What a GGUF file offers to a family that fills in its config: metadata and the tensor table, no values."""

    path: Any

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Key to value."""
        ...

    @property
    def offsets(self) -> Mapping[str, int]:
        """Key to the byte offset of its value."""
        ...

    @property
    def tensors(self) -> Mapping[str, Any]:
        """Name to entry of the table, which has a ``shape``."""
        ...

    def scalar(self, key: str, default: Any = None) -> Any:
        """A number, truth value or string; raises ModelFormatError for an array."""
        ...

    def error(self, field: str, offset: int | None, problem: str, *, hint: str = "") -> Exception:
        """The error to raise about this file."""
        ...


GGUF_NEUTRAL: Mapping[str, str] = {
    "attention.key_length_swa": "the head size of layers with a window, where it is one of its own",
    "attention.layer_norm_epsilon": "for norms with a mean, and there are none here",
    "attention.value_length_swa": "the head size of layers with a window, where it is one of its own",
    "classifier.output_labels": "for classifiers; their tensors are refused",
    "classifier.pooling_type": "for classifiers; their tensors are refused",
    "pooling_type": "how embeddings are pooled where they are returned instead of logits",
    "rope.dimension_count_swa": "the rotated part of heads of layers with a window, where it is one of its own",
    "rope.scaling.finetuned": "whether the model was trained at its longer context; for information",
    "tensor_data_layout": "names the layout of the first converters, which is the architecture's own",
}
"""Keys without effect on the logits of any architecture, and why; less the prefix (``llama.``), here and below."""

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
"""Keys that change what a model computes, and the values that change nothing, unless an architecture uses them."""

GGUF_GIVEN = frozenset({
    "vocab_size", "context_length", "embedding_length", "block_count", "feed_forward_length",
    "attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "rope.dimension_count", "rope.freq_base", "rope.scale_linear", "rope.scaling.type", "rope.scaling.factor",
    "rope.scaling.original_context_length", "rope.scaling.attn_factor", "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
})  # fmt: skip
"""Keys that every architecture uses, read and checked by ``gguf_config.py``."""


@dataclass(frozen=True, slots=True)
class GgufKeys:
    """What a family's GGUF files say, in the words of its config.

    Attributes:
        architecture: ``general.architecture``.
        class_name: of transformers' model, for the config's ``architectures``.
        used: key of the config -> key of the file, besides ``GGUF_GIVEN``; checked as ``ConfigKeys.used`` says. A
            window or a cap on logits of 0 is none. ``rope_scaling.X`` goes into yarn's parameters.
        constants: what the architecture itself implies.
        neutral, refused: more of both; harmless values are numbers, true being 1; without any the key must not
            be there.
        complete: fills in what follows from tensors or from several keys.
        also: further values of ``general.architecture`` that files with the same keys have.
        without_attention: what ``layer_types`` calls the layers that have no key heads in the file, and others
            "full_attention"; "" where all layers have as many.
        by_layer: keys of the config that a file may say by layers, 0 for those that have no such thing, and one number
            for all others; ``complete`` reads which. Where all are 0 the family's default holds.
        rotates: attention knows rope; else what files say of it, whatever it is, has no effect.
        least_of: sizes that files may have by layer, which ``complete`` reads; till then the least is the config's.
        still_pairs: ``rope_freqs`` says which pairs of a head stand still (those divided by 1e30), and no more.
        claims: which files of this architecture are of this family, where families share one.
        unused_tensors: suffixes of tensors that old converters wrote and nobody reads.
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
        """Every value of ``general.architecture`` that files have."""
        return (self.architecture, *self.also)

    def of(self, file: GgufSource) -> GgufKeys:
        """The same with the architecture that ``file`` names, which its keys begin with."""
        return replace(self, architecture=file.scalar("general.architecture"), also=())

    def all_neutral(self) -> dict[str, str]:
        """Keys without effect on this architecture's logits, and why."""
        taken = {*self.used.values(), *self.refused}
        return {key: why for key, why in {**GGUF_NEUTRAL, **self.neutral}.items() if key not in taken}

    def all_refused(self) -> dict[str, Refusal]:
        """Keys that must be at their harmless values."""
        taken = {*self.used.values(), *self.neutral}
        return {key: refusal for key, refusal in {**GGUF_REFUSED, **self.refused}.items() if key not in taken}

    def refuse(self, file: GgufSource) -> None:
        """Raise UnsupportedModelError for the first key that asks for what is not there here."""
        for name, refusal in self.all_refused().items():
            key = f"{self.architecture}.{name}"
            if key not in file.metadata:
                continue
            if not refusal.unless:
                raise UnsupportedModelError(f"{file.path}: has {key}, which this package cannot run")
            if refusal.refuses(_as_number(value := file.scalar(key))):
                raise UnsupportedModelError(
                    f"{file.path}: {key} is {shown(value)}, which this package cannot run; it must be "
                    f"{' or '.join(f'{one:g}' for one in refusal.unless)}, or not there"
                )

    def unknown(self, metadata: Mapping[str, Any]) -> list[str]:
        """The architecture's keys that nothing here knows, in the file's order: perhaps newer switches."""
        prefix = f"{self.architecture}."
        known = {*GGUF_GIVEN, *self.used.values(), *self.all_neutral(), *self.all_refused()}
        return [key for key in metadata if key.startswith(prefix) and key.removeprefix(prefix) not in known]


class Family(Protocol):
    """A family's row or file, as the rest sees it."""

    @property
    def KEYS(self) -> ConfigKeys:  # noqa: N802 - a constant of a file
        """The keys of its config.json."""
        ...

    @property
    def GGUF(self) -> GgufKeys | None:  # noqa: N802
        """Its GGUF files; None: it has none of its own."""
        ...

    @property
    def spec(self) -> Callable[[dict[str, Any]], Any]:
        """The function that makes the ``ModelSpec`` of a checked config."""
        ...


def _as_number(value: Any) -> Any:
    return int(value) if isinstance(value, bool) else value
