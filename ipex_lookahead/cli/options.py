"""Options that several commands share, and what they mean to ``generate``."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ipex_lookahead.cli.types import LowBit, Model, Words
from ipex_lookahead.low_bits import LOW_BITS, PRESETS

if TYPE_CHECKING:
    from ipex_lookahead.generation.sampling_params import SamplingParams
    from ipex_lookahead.generation.text_model import TextModel

FORMATS = f"{', '.join([*LOW_BITS][:-1])} or {[*LOW_BITS][-1]}"
"""The formats in a sentence."""
WEIGHTS = f"{', '.join(LOW_BITS)}; a mixture ({', '.join(PRESETS)}) or a .yaml file of rules"
"""What weights may be loaded in, in a sentence."""
DEVICES = Words(cpu="processors", xpu="Intel GPUs", cuda="GPUs of PyTorch's CUDA and ROCm builds")
PLACES = Words(**{**DEVICES.words, "opencl": "the first GPU, opencl:1 the second device of all"})

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class Option(click.Option):
    """An option whose environment variable is named after the option, not after our parameter."""

    def variable(self, prefix: str) -> str:
        """``PREFIX_MAX_NEW_TOKENS`` for ``--max-new-tokens``."""
        longest = max(self.opts, key=len)
        return f"{prefix}_{longest.lstrip('-').replace('-', '_').upper()}"

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """What the environment says; an empty variable says nothing."""
        return os.environ.get(self.variable(ctx.auto_envvar_prefix or "")) or None


def option(*names: str, **settings: Any) -> Decorator:
    """A click option whose help names its default."""
    settings.setdefault("show_default", settings.get("default") is not None)
    if isinstance(settings.get("type"), click.IntRange | click.FloatRange):
        settings.setdefault("metavar", "N" if isinstance(settings["type"], click.IntRange) else "X")
    return click.option(*names, cls=Option, **settings)


special_tokens_option = option(
    "--special-tokens-in-content",
    is_flag=True,
    help="Control tokens that a message spells, such as <|im_end|>, are control tokens, not the text that they are.",
)


def comma_separated(ctx: click.Context, param: click.Parameter, value: str) -> list[int]:
    """Callback: ``1,2,4`` as whole numbers above zero."""
    try:
        numbers = [int(part) for part in value.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise click.BadParameter(f"{value!r} is not a list of whole numbers above zero, such as 1,2,4")
    return numbers


model_option = option(
    "--model", "-m", type=Model(), default="default", help="A folder, a .gguf file, a short name, a hub id, 'default'."
)
low_bit_option = option("--low-bit", type=LowBit(), help=f"{WEIGHTS}; as the file has it if not given.")
kv_cache_option = option(
    "--kv-cache",
    type=click.Choice(["fp16", "int8"]),
    default="fp16",
    help="How keys and values are held; int8 takes half the memory.",
)
threads_option = option("--threads", type=click.IntRange(1), help="Worker threads; all physical cores if not given.")


def model_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--model --low-bit --threads --kv-cache``."""
    for decorate in (
        kv_cache_option,
        threads_option,
        low_bit_option,
        model_option,
    ):
        command = decorate(command)
    return command


def engine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--engine --device --deterministic``, which go to ``from_pretrained`` as they are."""
    for decorate in (
        option(
            "--deterministic/--no-deterministic",
            default=None,
            help="On torch: the very text of plain decoding with lookahead too, at some cost.",
        ),
        option("--device", type=PLACES, help="cpu, xpu (Intel GPUs), cuda or opencl; the engine's own if not given."),
        option(
            "--engine",
            type=click.Choice(["auto", "native", "torch", "ipex-llm", "opencl"]),
            default="auto",
            help="What runs the model; auto: native where it can, opencl where --device says so, else torch.",
        ),
    ):
        command = decorate(command)
    return command


PLACING = ("engine", "device", "deterministic")
"""The options of ``engine_options``."""


draft_model_option = option(
    "--draft-model", type=Model(), help="A smaller model with the same vocabulary, which drafts for the other."
)
prompts_option = option(
    "--prompts",
    multiple=True,
    type=click.Path(),
    metavar="FILE.jsonl",
    help="Prompts, or a folder of them; ours if not given.",
)
limit_option = option("--limit", type=click.IntRange(1), metavar="K", help="The first K prompts of each file.")
plot_option = option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.svg",
    help="Draw what was measured; SVG or PNG by the name. Needs matplotlib.",
)
json_option = option("--json", "as_json", is_flag=True, help="One JSON object as the last line.")


def sampling_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--temperature --top-k --top-p --min-p --seed``; what is not given is recommended for the model, or greedy."""
    own = "0 always takes the likeliest token. What is recommended for the model if not given, else 0."
    seed = "Of the sampler: the same seed, the same text. Fixed if not given, drawn with a --temperature of yours."
    return _sampling_options(command, option("--temperature", type=click.FloatRange(0), help=own), seed)


def greedy_sampling_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The same for what compares: greedy where nothing is given, whatever is recommended."""
    own = option("--temperature", type=click.FloatRange(0), default=0.0, help="0 always takes the likeliest token.")
    return _sampling_options(command, own, "Of the sampler: the same seed, the same text.")


def _sampling_options(command: Callable[..., Any], temperature: Decorator, seed: str) -> Callable[..., Any]:
    for decorate in (
        option("--seed", type=click.IntRange(0, 2**63 - 1), help=seed),
        option("--min-p", type=click.FloatRange(0, 1), help="Keep tokens at least this likely, beside the likeliest."),
        option("--top-p", type=click.FloatRange(0, 1, min_open=True), help="Keep the likeliest up to this sum."),
        option("--top-k", type=click.IntRange(0), help="Keep this many of the likeliest; 0 keeps all."),
        temperature,
    ):
        command = decorate(command)
    return command


def penalty_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--repetition-penalty --presence-penalty --frequency-penalty``, which greedy decoding obeys too."""
    for decorate in (
        option(
            "--frequency-penalty",
            type=click.FloatRange(-2, 2),
            help="What it loses each time it comes; both as OpenAI has them.",
        ),
        option(
            "--presence-penalty",
            type=click.FloatRange(-2, 2),
            help="What a token of the answer loses once, however often it came.",
        ),
        option(
            "--repetition-penalty",
            type=click.FloatRange(0, min_open=True),
            help="Factor against tokens of prompt and answer; above 1, such as 1.1. The model's own if not given.",
        ),
    ):
        command = decorate(command)
    return command


SAMPLER_SETTINGS = ("top_k", "top_p", "min_p", "seed")
"""What only means something when tokens are sampled."""
SAMPLING_OPTIONS = ("temperature", *SAMPLER_SETTINGS)
PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")


@dataclass(slots=True)
class Sampling:
    """How tokens are chosen; ``temperature`` 0 is greedy, and None what is recommended for the model."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None

    def given(self) -> dict[str, Any]:
        """The settings beside the temperature that are set."""
        return {name: getattr(self, name) for name in SAMPLER_SETTINGS if getattr(self, name) is not None}

    def check(self, model: TextModel | None = None) -> None:
        """Raise UsageError for a setting that greedy decoding would ignore; once more when the model is known."""
        temperature = self.temperature if model is None else self.effective(model)
        if temperature == 0 and (ignored := self.given()):
            flag = "--" + next(iter(ignored)).replace("_", "-")
            why = "" if self.temperature == 0 else ", which is this model's where none is given"
            raise click.UsageError(
                f"{flag} has no effect at temperature 0{why}; add --temperature 0.7, say, or leave it out"
            )

    def effective(self, model: TextModel) -> float:
        """The temperature that answers of this model have."""
        return model.resolved(self.params(1)).temperature or 0.0

    def arguments(self) -> dict[str, Any]:
        """As keyword arguments of the model's ``generate`` for transformers' users, which has no penalties by count."""
        if not self.temperature:
            return {"do_sample": False}
        return {"do_sample": True, "temperature": self.temperature, **self.given()}

    def params(self, max_new_tokens: int, stop: tuple[str, ...] = ()) -> SamplingParams:
        """As the commands' own model takes them."""
        from ipex_lookahead.generation.sampling_params import SamplingParams

        settings = {f.name: getattr(self, f.name) for f in fields(self)}
        return SamplingParams(max_new_tokens, stop=stop, **settings)
