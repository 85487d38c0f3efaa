"""Write docs/families.md from the rows and files of the model families: what each is, its GGUF name, what it refuses.

python scripts/families_doc.py
"""

from __future__ import annotations

from pathlib import Path

from ipex_lookahead.architectures import family, model_types
from ipex_lookahead.architectures.families import granitemoehybrid
from ipex_lookahead.architectures.families.dense import FAMILIES
from ipex_lookahead.architectures.keys import Family

FILE = Path(__file__).resolve().parents[1] / "docs" / "families.md"
HEAD = """\
# Model families

## On our own core

These keep every promise, from safetensors and from GGUF, on the engines `native` and `opencl`
([engines.md](engines.md)); those with recurrent layers (delta nets, Mamba-2, short convolutions) on `native` only.
`model_type` is a key of `config.json`, the architecture is `general.architecture` of a GGUF file. Heads that draft for
some of them are in [draft_models.md](draft_models.md).
"""
REFUSED = """\
A switch of a config that changes what a model computes is obeyed or refused by name, never passed over. Of Mistral's
GGUF files llama.cpp's converter leaves out the window that the first of them had; they call themselves `llama`, and
load as that. Phi-3 has 4,096 positions, more with `max_context=`. Where config.json ties the lm_head to the embedding
and the files hold both, the file's lm_head is used if it differs, as transformers 5 does, and `ipex-lookahead info`
reports it.

### What is refused

| `model_type` | key of the config | may be | since else it |
|---|---|---|---|
"""
TAIL = """
## Through PyTorch

`engine="auto"` uses the torch engine for other families, from safetensors, and prints a message. Tested are GPT-2, OPT,
Falcon, BLOOM, MPT, GPT-NeoX, GPT-J, Phi and Gemma 3n's text model; other decoders of transformers are tried when they
are loaded, and refused where their cache does not work. [`wrap(model)`](python.md#wrap) puts lookahead on a model that
transformers has loaded. Recurrent models (Mamba, RWKV, hybrids) are refused there, and models that see (Llama 3.2
Vision, GLM-4V, ...) of which neither the text part's family is above nor transformers has a class that only writes.
What is promised there: [engines.md](engines.md#what-is-promised-about-the-text).

## More

How much memory each takes: [which_model.md](which_model.md). A new family is a row or a file:
[adding_a_model.md](adding_a_model.md).

This file is made by `scripts/families_doc.py` from `ipex_lookahead/architectures`; do not edit it.
"""


def text() -> str:
    """The whole file."""
    lines = [HEAD, "| `model_type` | models | what it is | GGUF architecture |", "|---|---|---|---|"]
    refused = []
    for name in model_types():
        one = family(name)
        about = getattr(one, "about", one.__doc__)
        models, _, what = str(about).splitlines()[0].replace("``", "`").rstrip(".").partition(": ")
        lines.append(f"| `{name}` | {models} | {what} | {architectures(one)} |")
        for key, refusal in sorted(one.KEYS.refused.items()):
            values = ", ".join(f"`{value}`" for value in refusal.unless)
            refused.append(f"| `{name}` | `{key}` | {values} | {refusal.reason} |")
    return "\n".join([*lines, "", REFUSED + "\n".join(refused), TAIL])


def architectures(one: Family) -> str:
    """What its GGUF files call themselves; those of a wrapper are its parts'."""
    if one is granitemoehybrid:  # those without recurrent layers call themselves by another's name
        return f"`{one.GGUF.architecture}`, `{FAMILIES['granite'].GGUF.architecture}`"
    if one.GGUF is not None:
        return ", ".join(f"`{name}`" for name in one.GGUF.architectures)
    parts = [family(keys.family or name).GGUF for name, keys in one.KEYS.parts.items()]
    if not parts:
        return "folders only"
    return ", ".join(dict.fromkeys(f"`{part.architecture}`" for part in parts if part is not None)) or "folders only"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    print(f"wrote {FILE}")
