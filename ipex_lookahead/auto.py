"""From a name to a running model: picks the checkpoint's reader, its architecture and an engine."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipex_lookahead.architectures import spec_for
from ipex_lookahead.checkpoints import Checkpoint, open_checkpoint
from ipex_lookahead.drafting.self_speculation import check_gains
from ipex_lookahead.engines import ENGINES
from ipex_lookahead.engines.weights import WeightPlan, check_low_bit, not_converted
from ipex_lookahead.errors import InputError
from ipex_lookahead.formats import dequantize
from ipex_lookahead.hub import resolve_model

if TYPE_CHECKING:
    from ipex_lookahead.model import LookaheadModelForCausalLM

log = logging.getLogger("ipex_lookahead")

IGNORED = (
    "trust_remote_code",
    "use_cache",
    "optimize_model",
    "torch_dtype",
    "dtype",
    "low_cpu_mem_usage",
    "cpu_embedding",
    "device_map",
    "attn_implementation",
    "use_safetensors",
)
"""Arguments of transformers and ipex-llm that are accepted and change nothing here; remote code is never run."""


class AutoModelForCausalLM:
    """Loads causal language models, with the names that ipex-llm's users know."""

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | PathLike[str],
        *,
        load_in_low_bit: str | None = None,
        load_in_4bit: bool = False,
        group_size: int = 32,
        mixed_precision: bool = False,
        modules_to_not_convert: list[str] | None = None,
        threads: int | None = None,
        engine: str = "auto",
        kv_cache: str = "fp16",
        speculative: bool = False,
        progress: bool = True,
        **ignored: Any,
    ) -> LookaheadModelForCausalLM:
        """Load a checkpoint: a folder, a GGUF file, a hub id, or ``"default"`` for the embedded model.

        Args:
            pretrained_model_name_or_path: where the checkpoint is.
            load_in_low_bit: a key of ``FORMATS`` such as ``sym_int4``; None keeps every tensor as it is in the file.
            load_in_4bit: ipex-llm's synonym of ``load_in_low_bit="sym_int4"``.
            group_size: inputs that share a scale, 32 or 64 (ipex-llm's).
            mixed_precision: the lm_head in sym_int8.
            modules_to_not_convert: parts of module names whose weights stay as they are in the file.
            threads: threads to compute with; None = the physical cores this process may use.
            engine: a key of ``ENGINES``, or "auto".
            kv_cache: "fp16", or "int8" with a scale a position and head: half the memory, a little less exact to the
                model (never to lookahead).
            speculative: ipex-llm's: ``generate`` drafts with a four-bit copy of the model, made when first needed; for
                sym_int8, bf16 and fp16. The text never changes.
            progress: show a progress bar while weights are quantised and packed.
            **ignored: arguments of transformers and ipex-llm that change nothing here (see ``IGNORED``).

        Raises:
            InputError: no such checkpoint, or an argument outside what is allowed.
            ModelFormatError: the checkpoint's bytes are not what its format says.
            UnsupportedModelError: a model this package cannot run.
            LowBitFormatError: an unknown low-bit format.
            EngineError: the engine cannot run on this machine.
            DownloadError: the model could not be fetched.
        """
        if unknown := sorted(set(ignored) - set(IGNORED)):
            accepted = ", ".join(IGNORED)
            raise InputError(
                f"from_pretrained does not know {unknown[0]!r}; besides its own arguments it accepts {accepted}"
            )
        if ignored.get("trust_remote_code"):
            log.info("trust_remote_code is ignored: this package never runs code from a checkpoint")
        if load_in_4bit and load_in_low_bit not in (None, "sym_int4"):
            raise InputError(
                f"load_in_4bit means sym_int4, but load_in_low_bit is {load_in_low_bit!r}; pass one of them"
            )
        low_bit = "sym_int4" if load_in_4bit else load_in_low_bit
        path = resolve_model(str(pretrained_model_name_or_path), progress=progress)
        with _opened(path) as checkpoint:
            return _load(
                checkpoint,
                low_bit=None if low_bit is None else check_low_bit(low_bit),
                group_size=group_size,
                mixed_precision=mixed_precision,
                not_converted_names=not_converted(modules_to_not_convert),
                threads=threads,
                engine=engine,
                kv_cache=kv_cache,
                speculative=speculative,
                progress=progress,
            )

    @classmethod
    def from_gguf(cls, fpath: str | PathLike[str], **kwargs: Any) -> tuple[LookaheadModelForCausalLM, Any]:
        """A GGUF file's model and tokenizer; the arguments of ``from_pretrained``, and ipex-llm's ``low_bit``."""
        if "low_bit" in kwargs:
            kwargs["load_in_low_bit"] = kwargs.pop("low_bit")
        model = cls.from_pretrained(fpath, **kwargs)
        return model, model.tokenizer

    @classmethod
    def load_low_bit(cls, path: str | PathLike[str], **kwargs: Any) -> LookaheadModelForCausalLM:
        """A folder written by ``model.save_low_bit``: nothing is quantised again."""
        folder = Path(path).expanduser()
        if not folder.is_dir():
            raise InputError(f"{folder}: there is no such folder", hint="write one with model.save_low_bit(folder)")
        return cls.from_pretrained(folder, **kwargs)


def load_model_and_tokenizer(
    name_or_path: str,
    *,
    low_bit: str | None = None,
    group_size: int = 32,
    mixed_precision: bool = False,
    threads: int | None = None,
    kv_cache: str = "fp16",
    progress: bool = True,
) -> tuple[LookaheadModelForCausalLM, Any | None]:
    """What the commands use: a model, and its tokenizer or None. See ``AutoModelForCausalLM.from_pretrained``."""
    model = AutoModelForCausalLM.from_pretrained(
        name_or_path,
        load_in_low_bit=low_bit,
        group_size=group_size,
        mixed_precision=mixed_precision,
        threads=threads,
        kv_cache=kv_cache,
        progress=progress,
    )
    return model, model.tokenizer


@contextmanager
def _opened(path: Path) -> Iterator[Checkpoint]:
    checkpoint = open_checkpoint(path)
    try:
        yield checkpoint
    finally:
        checkpoint.close()


def _load(
    checkpoint: Checkpoint,
    *,
    low_bit: str | None,
    group_size: int,
    mixed_precision: bool,
    not_converted_names: tuple[str, ...],
    threads: int | None,
    engine: str,
    kv_cache: str,
    speculative: bool,
    progress: bool,
) -> LookaheadModelForCausalLM:
    if engine != "auto" and engine not in ENGINES:
        raise InputError(f"engine is {engine!r}; it must be 'auto' or one of {', '.join(ENGINES)}")
    _inline_rope_factors(checkpoint)
    spec = spec_for(checkpoint.config)
    head = spec.embedding if spec.tied else spec.lm_head
    label = low_bit or _file_format(checkpoint, spec.matrices["down"].format(layer=0) + ".weight")
    if speculative:
        check_gains(label)
    plan = WeightPlan(low_bit, group_size, mixed_precision, not_converted_names, head, label)
    loader = ENGINES["native" if engine == "auto" else engine]
    with _progress(progress) as report:
        loaded = loader.load(checkpoint, spec, plan, threads=threads, kv_cache=kv_cache, progress=report)

    from ipex_lookahead.model import LookaheadModelForCausalLM

    return LookaheadModelForCausalLM(
        _transformers_config(checkpoint.config),
        loaded,
        generation_config=_generation_config(checkpoint),
        low_bit=label,
        tokenizer=checkpoint.tokenizer(),
        checkpoint_config=dict(checkpoint.config),
        speculative=speculative,
        source=checkpoint.path,
    )


def _file_format(checkpoint: Checkpoint, name: str) -> str:
    return checkpoint.info(name).format


def _inline_rope_factors(checkpoint: Checkpoint) -> None:
    """A GGUF file keeps Llama 3's frequency divisors in a tensor of its own; the architecture wants them as numbers."""
    scaling = checkpoint.config.get("rope_scaling") or {}
    if scaling.get("rope_type") == "freq_factors" and "factors" not in scaling:
        scaling["factors"] = [float(f) for f in dequantize(checkpoint.read("rope_freqs"))]


def _transformers_config(config: dict[str, Any]) -> Any:
    """Our checked config as transformers' own class, which pipelines and streamers ask for."""
    from ipex_lookahead.compat import llama_config

    values = {k: v for k, v in config.items() if k not in ("model_type", "rope_theta", "rope_scaling")}
    scaling = dict(config.get("rope_scaling") or {"rope_type": "default"})
    if scaling["rope_type"] == "freq_factors":  # no name for these in transformers; the engine has the numbers
        scaling = {"rope_type": "default"}
    return llama_config(values, scaling, config["rope_theta"])


def _generation_config(checkpoint: Checkpoint) -> Any:
    from transformers import GenerationConfig

    tokens = {k: v for k, v in checkpoint.config.items() if k in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return GenerationConfig(**{**tokens, **checkpoint.generation_config})


@contextmanager
def _progress(show: bool) -> Iterator[Any]:
    """A bar over the tensors on stderr, only where a person is looking."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not show or not console.is_terminal:
        yield None
        return
    columns = (TextColumn("[progress.description]{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("packing weights", total=None)

        def report(done: int, total: int, name: str) -> None:
            bar.update(task, completed=done, total=total)

        yield report
