"""A script written for ipex-llm: one import changes, and the lines marked "was" show optional changes.

python examples/migrate_from_ipex_llm.py --repo-id-or-model-path meta-llama/Llama-2-7b-chat-hf
python examples/migrate_from_ipex_llm.py --engine ipex-llm      # where ipex-llm is installed: its model, our loop
"""

from __future__ import annotations

import sys
import time

import click
import torch

# was: from ipex_llm.transformers import AutoModelForCausalLM
from ipex_lookahead.cli.running import run_command
from ipex_lookahead.tokenization.prompts import build_prompt
from ipex_lookahead.transformers import AutoModelForCausalLM


@click.command()
@click.option("--repo-id-or-model-path", default="default", help="A folder, a .gguf file, a hub id, or 'default'.")
@click.option("--prompt", default="What is AI?")
@click.option("--n-predict", default=32, type=click.IntRange(1))
@click.option("--engine", default="auto", help="auto, native, torch or ipex-llm.")
def main(repo_id_or_model_path: str, prompt: str, n_predict: int, engine: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(
        repo_id_or_model_path,
        load_in_low_bit="sym_int4",  # or load_in_4bit=True, as before
        optimize_model=True,  # accepted; the native engine is always optimized
        trust_remote_code=True,  # accepted; code from a checkpoint is never run
        use_cache=True,
        engine=engine,
    )
    tokenizer = model.tokenizer  # was: AutoTokenizer.from_pretrained(path, trust_remote_code=True)
    with torch.inference_mode():
        ids = torch.tensor([build_prompt(tokenizer, model.config.to_dict(), prompt)])
        model.generate(ids, max_new_tokens=min(n_predict, 8), lookahead=2)  # warm-up; rows are timed once
        texts = {}
        for lookahead in (0, 2):
            started = time.perf_counter()
            output = model.generate(ids, max_new_tokens=n_predict, do_sample=False, lookahead=lookahead)
            seconds = time.perf_counter() - started
            texts[lookahead] = tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True)
            print(f"lookahead={lookahead}: {seconds:.2f} s, {model.n_token_generated} tokens")
    print(texts[2])
    print("text equal to plain decoding:", "yes" if texts[0] == texts[2] else "no")
    if texts[0] != texts[2] and model.engine.row_invariant:  # was: not equal; here always, on the native engine
        raise click.ClickException("lookahead must never change the output. Please report this")


if __name__ == "__main__":
    sys.exit(run_command(main))
