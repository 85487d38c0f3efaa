"""A custom draft source: copy from a text that the answer may repeat, such as a file to edit.

python examples/custom_proposer.py
python examples/custom_proposer.py --reference old_version.py "Add type hints to this function: ..."
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click
import torch

from ipex_lookahead import AutoModelForCausalLM, LookaheadConfig
from ipex_lookahead.cli.running import run_command
from ipex_lookahead.drafting import Draft, Outcome
from ipex_lookahead.tokenization.prompts import build_prompt

LETTER = """\
Dear customers, our shop will be closed from Monday to Wednesday, because we are repairing the roof. On Thursday we \
open again at nine o'clock, with fresh bread and new opening hours."""


class Copier:
    """Wherever the last tokens stand in the reference, what follows there may follow here."""

    def __init__(self, reference: Sequence[int], longest: int = 4) -> None:
        self.reference = list(reference)
        self.longest = longest
        self.tail: list[int] = []

    def begin(self, prompt: Sequence[int]) -> None:
        self.tail = list(prompt[-self.longest :])

    def propose(self, budget: int) -> Draft:
        for size in range(len(self.tail), 0, -1):
            for at in range(len(self.reference) - size):
                if self.reference[at : at + size] == self.tail[-size:]:
                    return Draft.chain(self.reference[at + size : at + size + budget])
        return Draft()

    def observe(self, outcome: Outcome) -> None:
        self.tail = [*self.tail, *outcome.emitted][-self.longest :]


@click.command()
@click.argument("prompt", default=f"Correct the spelling of this letter: {LETTER}")
@click.option("--reference", type=click.Path(dir_okay=False, path_type=Path), help="The text to copy from.")
@click.option("--model", "name", default="default", help="A folder, a .gguf file, a hub id, or 'default'.")
@click.option("--max-new-tokens", default=96, type=click.IntRange(1))
def main(prompt: str, reference: Path | None, name: str, max_new_tokens: int) -> None:
    model = AutoModelForCausalLM.from_pretrained(name)
    ids = torch.tensor([build_prompt(model.tokenizer, model.config.to_dict(), prompt)])
    text = LETTER if reference is None else reference.read_text(encoding="utf-8")
    known = model.tokenizer(text, add_special_tokens=False)["input_ids"]

    def proposer(config: LookaheadConfig) -> Copier:  # called once for each sequence
        return Copier(known)

    out = model.generate(ids, max_new_tokens=max_new_tokens, do_sample=False, lookahead=8, proposer=proposer)
    print(model.tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True))
    stats = model.stats
    print(f"\n{stats.mean_acceptance_length:.2f} tokens a step, {stats.accepted} of {stats.drafted} drafted were right")
    plain = model.generate(ids, max_new_tokens=max_new_tokens, do_sample=False, lookahead=0)
    print("equal to plain decoding:", "yes" if torch.equal(out, plain) else "no")


if __name__ == "__main__":
    sys.exit(run_command(main))
