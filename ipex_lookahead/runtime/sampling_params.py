"""How an answer is made, as the commands say it."""

from __future__ import annotations

from dataclasses import dataclass

from ipex_lookahead.config import bounded


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How an answer is made. None leaves it to the model: see ``recommended.py``; else to Hugging Face's default.

    Attributes:
        max_new_tokens: most tokens of the answer; 0 makes none.
        temperature: 0 takes the most likely token; None: what is recommended for the model.
        top_k, top_p, min_p: see ``WarperParams``; they have no effect at temperature 0.
        seed: of the sampler; None draws one, which the statistics have, or with a recommended temperature is ``SEED``.
        repetition_penalty: see ``decoding/penalties.py``.
        presence_penalty, frequency_penalty: see there; the model has no say in these.
        stop: an answer ends where one of these texts appears.
        ignore_eos: the tokens that end an answer do not end it.
        min_tokens: number of tokens before an end token may come; a text of ``stop`` that they complete is passed over.
        stop_token_ids: tokens that end an answer too, also with ``ignore_eos``.
    """

    max_new_tokens: int
    temperature: float | None = bounded(0.0, float, 0, 100)
    top_k: int | None = bounded(None, int, 0)
    top_p: float | None = bounded(None, float, 0, 1, above=True)
    min_p: float | None = bounded(None, float, 0, 1)
    seed: int | None = bounded(None, int, 0, 2**63 - 1)
    repetition_penalty: float | None = bounded(None, float, 1e-6, 100)
    presence_penalty: float | None = bounded(None, float, -2, 2)
    frequency_penalty: float | None = bounded(None, float, -2, 2)
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    min_tokens: int | None = None
    stop_token_ids: tuple[int, ...] = ()
