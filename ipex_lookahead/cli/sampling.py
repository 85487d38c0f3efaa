"""The options that say how tokens are chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from ipex_lookahead.cli.options import option
from ipex_lookahead.runtime.sampling_params import SamplingParams

if TYPE_CHECKING:
    from ipex_lookahead.runtime.text_model import TextModel


@dataclass
class Sampler:
    """How tokens are drawn; ``temperature`` 0 is greedy, and None what is recommended for the model."""

    temperature: float | None = option(
        "0 always takes the likeliest token. What is recommended for the model if not given, else 0.",
        like=SamplingParams,
    )
    top_k: int | None = option("Keep this many of the likeliest; 0 keeps all.", like=SamplingParams)
    top_p: float | None = option("Keep the likeliest up to this sum.", like=SamplingParams)
    min_p: float | None = option("Keep tokens at least this likely, beside the likeliest.", like=SamplingParams)
    seed: int | None = option(
        "Of the sampler: the same seed, the same text. Fixed if not given, drawn with a --temperature of yours.",
        like=SamplingParams,
    )

    def given(self) -> dict[str, Any]:
        """The settings that are set and only mean something when tokens are sampled."""
        found = {name: getattr(self, name) for name in ("top_k", "top_p", "min_p", "seed")}
        return {name: value for name, value in found.items() if value is not None}

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

    def params(self, max_new_tokens: int, stop: tuple[str, ...] = ()) -> SamplingParams:
        """As the commands' own model takes them."""
        return SamplingParams(max_new_tokens, stop=stop, **vars(self))


@dataclass
class Sampling(Sampler):
    """The same, and penalties, which greedy decoding obeys too."""

    repetition_penalty: float | None = option(
        "Factor against tokens of prompt and answer; above 1, such as 1.1. The model's own if not given.",
        like=SamplingParams,
    )
    presence_penalty: float | None = option(
        "What a token of the answer loses once, however often it came.", like=SamplingParams
    )
    frequency_penalty: float | None = option(
        "What it loses each time it comes; both as OpenAI has them.", like=SamplingParams
    )


@dataclass
class GreedySampler(Sampler):
    """Of what compares: greedy where nothing is given, whatever is recommended."""

    temperature: float | None = option("0 always takes the likeliest token.", 0.0, like=SamplingParams)
    seed: int | None = option("Of the sampler: the same seed, the same text.", like=SamplingParams)

    def arguments(self) -> dict[str, Any]:
        """As keyword arguments of the model's ``generate`` for transformers' users."""
        if not self.temperature:
            return {"do_sample": False}
        return {"do_sample": True, "temperature": self.temperature, **self.given()}
