"""Draft with a smaller model of the same vocabulary, or with the model's own weights in four bits.

python examples/speculative.py                                   # self-speculation: ipex-llm's speculative=True
python examples/speculative.py --model LARGE --draft-model SMALL
"""

from __future__ import annotations

import sys

import click
import torch

from ipex_lookahead import AutoModelForCausalLM
from ipex_lookahead.cli.running import run_command
from ipex_lookahead.cli.tables import print_table
from ipex_lookahead.tokenization.prompts import build_prompt


@click.command()
@click.argument("prompt", default="Why is the sky blue?")
@click.option("--model", "name", default="default", help="A folder, a .gguf file, a hub id, or 'default'.")
@click.option("--low-bit", default="sym_int8", show_default=True, help="Weight format of the model, 8 bits or more.")
@click.option("--draft-model", help="A smaller model with the same vocabulary. Default: self-speculation.")
@click.option("--max-step-draft", default=8, type=click.IntRange(1, 128), help="Maximum tokens to draft per step.")
@click.option(
    "--th-stop-draft",
    default=0.8,
    type=click.FloatRange(0, 1),
    help="Stop drafting after a token with a lower probability.",
)
@click.option("--max-new-tokens", default=64, type=click.IntRange(2))
def main(
    prompt: str,
    name: str,
    low_bit: str,
    draft_model: str | None,
    max_step_draft: int,
    th_stop_draft: float,
    max_new_tokens: int,
) -> None:
    itself = draft_model is None
    model = AutoModelForCausalLM.from_pretrained(name, load_in_low_bit=low_bit, speculative=itself)
    small = None if draft_model is None else AutoModelForCausalLM.from_pretrained(draft_model)
    ids = torch.tensor([build_prompt(model.tokenizer, model.config.to_dict(), prompt)])
    drafting = {"draft_model": small, "max_step_draft": max_step_draft, "th_stop_draft": th_stop_draft}
    ways = {"off": {"lookahead": 0}, "always": {**drafting, "adaptive": False}, "where it pays": drafting}
    model.generate(ids, max_new_tokens=8, **drafting)  # warm-up; what rows cost is measured once
    rows, outs = [], []
    for label, settings in ways.items():
        outs.append(model.generate(ids, max_new_tokens=max_new_tokens, do_sample=False, **settings))
        stats = model.stats
        speed = f"{stats.decode_tok_s:.1f}", f"{stats.mean_acceptance_length:.2f}"
        identical = "yes" if torch.equal(outs[0], outs[-1]) else "NO"
        rows.append((label, *speed, f"{100 * stats.acceptance_rate:.0f}%", identical))
    print(model.tokenizer.decode(outs[0][0, ids.shape[1] :], skip_special_tokens=True), end="\n\n")
    who = "itself drafts" if itself else f"{draft_model} drafts"
    print_table((who, "tok/s", "tokens/step", "right", "identical"), rows)
    if model.engine.row_invariant and not all(torch.equal(out, outs[0]) for out in outs):
        raise click.ClickException("lookahead must never change the output. Please report this")


if __name__ == "__main__":
    sys.exit(run_command(main))
