"""Write docs/families.md from the model families: descriptions, GGUF names, how each was checked, refused options.

python scripts/families_doc.py
"""

from __future__ import annotations

import re
from pathlib import Path

from ipex_lookahead.architectures import encoder_families, family, model_types
from ipex_lookahead.architectures.families import granitemoehybrid
from ipex_lookahead.architectures.families.dense import FAMILIES
from ipex_lookahead.architectures.keys import Family
from ipex_lookahead.hub.names import HubName, parse_name
from ipex_lookahead.hub.recommended import recommended_models

FILE = Path(__file__).resolve().parents[1] / "docs" / "families.md"
REAL_WEIGHTS = {"llama": "SmolLM2-135M-Instruct", "gemma3_text": "Gemma 3 270M", "bert": "all-MiniLM-L6-v2"}
"""Family -> the model with trained weights on which it was compared with another program. Other families were compared
on random weights only."""
HEAD = """\
# Model families

After reading this page you know whether your model runs, on which engine, and how its family was checked.

```sh
ipex-lookahead info path/to/model    # family, formats, memory; no weights are loaded
```

## On our own core

The families of this table run on the native engine, from safetensors and from GGUF files. Find your model by
`model_type` in `config.json`, or by `general.architecture` in a GGUF file. The `opencl` engine runs the same
families, with [exceptions](limits.md#models). [draft_models.md](draft_models.md) lists the families with trained heads
for drafting.

The column *weights* states what the family was checked with:

- **A model's name**: published weights. SmolLM2-135M-Instruct has the perplexity of transformers in float32 within
  0.4 %, in eight GGUF formats ([benchmarks.md](benchmarks.md#quality)). Gemma 3 270M in Q4_K_M has a perplexity of
  18.122, and 18.127 in llama.cpp.
- **random**: tiny models with random weights only, since no published weights were available to the developers. With
  these, the tests compare the logits of each family, with each of its options, with transformers in float32, and GGUF
  files with folders bit for bit. A nightly test compares the GGUF files with llama.cpp.

If a model writes nonsense, please open an issue with the output of `ipex-lookahead doctor` and `ipex-lookahead info
MODEL`.

"""
REFUSED = """\
Notes:

- A config option that changes what a model computes is supported, or refused by name. It is never ignored.
- GGUF files of Mistral are named `llama` and load as that family. llama.cpp's converter leaves out the sliding window
  of the first Mistral.
- transformers has no `bailing_moe_v2` and no `minicpm`. These families run on the native and `opencl` engines only, and
  were compared with the published formulas in float32 and with llama.cpp.
- The `opencl` engine refuses a `nemotron_h` with `moe_latent_size` by name.
- Phi-3 has 4,096 positions, more with `max_context=`.
- If `config.json` ties the lm_head to the embedding and the files hold a different lm_head, the file's lm_head is used
  (as in transformers 5), and `ipex-lookahead info` reports it.

### Refused options

| key of the config | allowed | any other value | families |
|---|---|---|---|
"""
ENCODERS = """
## Text encoders

These families compute embeddings, and scores of cross-encoders for reranking, and generate no text. They run on the
native engine. Embeddings of decoders (Qwen3-Embedding, for example) run as the decoder's family.

| `model_type` | models | description | GGUF architecture | weights |
|---|---|---|---|---|
"""
ENCODER_NOTES = """
Notes:

- The tests compare the rows of each family, with each of its options, and the scores of cross-encoders with
  transformers in float32, and GGUF files with folders bit for bit.
- GGUF files of XLM-R, RoBERTa and DistilBERT are named `bert`. llama.cpp's converter leaves out the pooler of BERT's
  cross-encoders, so their GGUF files are refused; those of XLM-R's cross-encoders have it.
- GGUF files do not state which GELU a BERT has. It is computed with the error function, as in transformers.
- A `classifier` in a folder counts if the config's `architectures` names a class for sequence classification.
- `nomic_bert` is read from folders of the authors' own class and of transformers 5, up to the 2,048 tokens that it was
  trained with. Its mixtures (v2) are refused by name.
- `jina_embeddings_v3` has the weights without the adapters of its tasks.
- A low-bit format applies to the matrices of the layers. Tables, classifiers and dense layers keep the file's format.
"""
BY_NAME = """
## Models by name

Popular models, by the name of their repository. `ipex-lookahead run NAME` takes the short name, or the
name of the series alone (`qwen3.6`). [which_model.md](which_model.md#models-by-name) adds file, size, license, memory,
speed and source of drafts.

| model | short name | `model_type` |
|---|---|---|
"""
TAIL = """
## Through PyTorch

`engine="auto"` runs other families on the torch engine, from safetensors, and prints a message. GPT-2, OPT, Falcon,
BLOOM, MPT, GPT-NeoX, GPT-J, Phi and Gemma 3n's text model are tested. Other decoders of transformers are checked when
they are loaded, and refused if their cache does not support lookahead. [`wrap(model)`](python.md#wrap) adds lookahead
to a model that transformers has loaded.

Refused are recurrent models (Mamba, RWKV, hybrids), and vision models (Llama 3.2 Vision, GLM-4V, ...) for which neither
the table above nor transformers has a text-only class. [engines.md](engines.md#what-is-promised-about-the-text) states
what the torch engine promises.

## More

[which_model.md](which_model.md) lists the memory of each model. [adding_a_model.md](adding_a_model.md) explains how to
add a family.

This page is made by `scripts/families_doc.py` from `ipex_lookahead/architectures`; do not edit it.
"""


def text() -> str:
    """Return the whole page."""
    lines = [HEAD + "| `model_type` | models | description | GGUF architecture | weights |", "|---|---|---|---|---|"]
    refused: dict[tuple[str, str, str], list[str]] = {}
    for name in model_types():
        one = family(name)
        about = getattr(one, "about", one.__doc__)
        models, _, what = str(about).splitlines()[0].replace("``", "`").rstrip(".").partition(": ")
        lines.append(f"| `{name}` | {models} | {what} | {architectures(one)} | {REAL_WEIGHTS.get(name, 'random')} |")
        for key, refusal in one.KEYS.refused.items():
            values = ", ".join(f"`{value}`" for value in refusal.unless)
            # The families of one row differ in the name of transformers' class only.
            reason = re.sub(
                r"which transformers' .+ (ignores?|does not do)$", "which transformers does not do", refusal.reason
            )
            refused.setdefault((key, values, reason), []).append(f"`{name}`")
    rows = [
        f"| `{key}` | {values} | {reason} | {', '.join(names)} |" for (key, values, reason), names in refused.items()
    ]
    encoding = ENCODERS + "\n".join(encoders()) + "\n" + ENCODER_NOTES
    return "\n".join([*lines, "", REFUSED + "\n".join(sorted(rows)), encoding + BY_NAME + "\n".join(by_name()), TAIL])


def encoders() -> list[str]:
    """Return the rows of text encoders."""
    rows = []
    for name, one in sorted(encoder_families().items()):
        models, _, what = one.about.rstrip(".").partition(": ")
        files = ", ".join(f"`{found}`" for found in one.GGUF.architectures) if one.GGUF else "folders only"
        kind = f"`{name}`"
        if name == "gemma_embedding":  # has the model type of a decoder
            kind = "`gemma3_text` with `use_bidirectional_attention`"
        elif name == "jina_bert":
            kind = "`bert` with `position_embedding_type` `alibi`"
        elif name in ("distilbert", "roberta", "camembert", "xlm-roberta"):
            files = "`bert`"
        rows.append(f"| {kind} | {models} | {what} | {files} | {REAL_WEIGHTS.get(name, 'random')} |")
    return rows


def by_name() -> list[str]:
    """Return the rows of the recommended models, by the names of their repositories."""
    rows = []
    for model in recommended_models().values():
        found = parse_name(model.model)
        assert isinstance(found, HubName)
        name = re.sub(r"(-qat-q4_0)?-gguf$", "", found.repo.rpartition("/")[2], flags=re.IGNORECASE)
        rows.append(f"| {name.removeprefix('microsoft_')} | `{model.name}` | `{model.family}` |")
    return sorted(rows, key=str.lower)


def architectures(one: Family) -> str:
    """Return the GGUF architectures of a family; those of its parts for a vision model."""
    if one is granitemoehybrid:  # files without recurrent layers have the name of another family
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
