"""The sampling options."""

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
    """The sampling options; ``temperature`` 0 is greedy, and None is the recommended value of the model."""

    temperature: float | None = option(
        "Sampling temperature; 0 is greedy. Default: the model's recommendation, else 0.",
        like=SamplingParams,
    )
    top_k: int | None = option("Keep the K most likely tokens; 0 keeps all.", like=SamplingParams)
    top_p: float | None = option("Keep the most likely tokens up to this total probability.", like=SamplingParams)
    min_p: float | None = option("Drop tokens less than X times as likely as the top token.", like=SamplingParams)
    seed: int | None = option(
        "Sampling seed. Default: fixed; random if you set --temperature.",
        like=SamplingParams,
    )

    def given(self) -> dict[str, Any]:
        """Return the given settings that have no effect on greedy decoding."""
        found = {name: getattr(self, name) for name in ("top_k", "top_p", "min_p", "seed")}
        return {name: value for name, value in found.items() if value is not None}

    def check(self, model: TextModel | None = None) -> None:
        """Raise UsageError for a setting that greedy decoding ignores; call it again with the model."""
        temperature = self.temperature if model is None else self.effective(model)
        if temperature == 0 and (ignored := self.given()):
            flag = "--" + next(iter(ignored)).replace("_", "-")
            why = "" if self.temperature == 0 else ", the default of this model"
            raise click.UsageError(
                f"{flag} has no effect at temperature 0{why}; add --temperature 0.7, for example, or leave it out"
            )

    def effective(self, model: TextModel) -> float:
        """Return the temperature for a model."""
        return model.resolved(self.params(1)).temperature or 0.0

    def params(self, max_new_tokens: int, stop: tuple[str, ...] = ()) -> SamplingParams:
        """Return the settings as ``SamplingParams``."""
        return SamplingParams(max_new_tokens, stop=stop, **vars(self))


@dataclass
class Sampling(Sampler):
    """The sampling options with penalties, which greedy decoding uses too."""

    repetition_penalty: float | None = option(
        "Divide the logits of tokens in prompt and answer by X, such as 1.1. Default: the model's recommendation.",
        like=SamplingParams,
    )
    presence_penalty: float | None = option(
        "OpenAI's presence penalty: subtracted once for any token already generated.", like=SamplingParams
    )
    frequency_penalty: float | None = option(
        "OpenAI's frequency penalty: subtracted for each time a token was generated.", like=SamplingParams
    )


@dataclass
class GreedySampler(Sampler):
    """The sampling options of benchmarks; the default is greedy."""

    temperature: float | None = option("Sampling temperature; 0 is greedy.", 0.0, like=SamplingParams)
    seed: int | None = option("Sampling seed.", like=SamplingParams)

    def arguments(self) -> dict[str, Any]:
        """Return keyword arguments of transformers' ``generate``."""
        if not self.temperature:
            return {"do_sample": False}
        return {"do_sample": True, "temperature": self.temperature, **self.given()}
