"""What is asked of a model that serves many: a prompt, how its answer is made, and whose it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.decoding.sampling import Ids, Processor
from ipex_lookahead.drafting.draft import Draft
from ipex_lookahead.runtime.sampling_params import SamplingParams
from ipex_lookahead.runtime.stop_texts import Stop

DraftFilter = Callable[[Ids, Draft], Draft]
"""(the sequence so far, a draft of what follows) -> what of the draft may follow at all; a tree again."""


@dataclass(slots=True)
class GenerationRequest:
    """A request for one answer.

    Attributes:
        prompt: token ids.
        params: how tokens are chosen.
        lookahead: how to draft, as for :func:`resolve_lookahead`; it never changes the answer.
        adaptive: False always drafts as much as allowed.
        processors: change the logits after the model's own, called once for each emitted position, in order.
        draft_filter: cuts a draft to what may follow, before it costs a row.
        stop: called after each emitted token, in order, with the sequence so far; True ends it there, beside what
            ``params`` stops at.
        prediction: ids that the answer may resemble: one more source of drafts, named "prediction".
        key: whose memory of answers and of prompts is used; other keys' do not show, not even in the times. Letters
            and digits: a store in a file has one for each key, with the key behind its name.
        salt: divides a key's memory further, so that two users of one key need not learn of each other.
        sequence: the answer's number in the noise, for several answers with one seed, 0 to 2**32 - 1.
        top_logprobs: tell the tokens' log probabilities and those of so many others, 0 to 64; None tells none.
        prompt_logprobs: the same of the prompt's tokens, for which all of it is read, whatever is kept of it.
        turns: positions in the prompt at which the user's texts begin; None finds them by the chat template. Models
            with recurrent layers keep their state there for later prompts; the answer does not depend on it.
    """

    prompt: Sequence[int]
    params: SamplingParams = SamplingParams(0)
    lookahead: int | str | LookaheadConfig | None = None
    adaptive: bool | None = None
    processors: Sequence[Processor] = ()
    draft_filter: DraftFilter | None = None
    stop: Stop | None = None
    prediction: Sequence[int] = ()
    key: str = ""
    salt: str = ""
    sequence: int = 0
    top_logprobs: int | None = None
    prompt_logprobs: int | None = None
    turns: Sequence[int] | None = None
