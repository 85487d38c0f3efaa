"""Write docs/which_model.md: the recommended models by memory and by name, from ipex_lookahead/hub/recommended.yaml.

python scripts/which_model_doc.py
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ipex_lookahead.cli.recommended import REACHED, expected_tok_s
from ipex_lookahead.hub.names import HubName, parse_name
from ipex_lookahead.hub.recommended import MAX_READ, MEMORY_SHARE, Recommended, default_size, recommended_models

FILE = Path(__file__).resolve().parents[1] / "docs" / "which_model.md"
FREE = (1, 1.5, 2, 3, 4, 6, 8, 10, 13, 16, 18, 20, 22, 24)
"""Free memory in GB of the first table's rows."""
BANDWIDTHS = (25, 60, 200)
"""Memory bandwidths in GB/s for which the speed is given."""
MACHINES = (8, 16, 32, 64)
"""Memory in GB of the machines for which the default sizes are given."""
HEAD = """\
# Which model

After this page you can choose a model that fits your memory, and estimate its speed.

<!-- needs: network -->
```sh
ipex-lookahead pull
ipex-lookahead run qwen3-4b
```

`pull` without a name lists the recommended models: license, bits per weight, size, memory with 4,096 tokens of
context, whether they reason before they answer, whether they take images ("sees"), the source of drafts, and the
expected tokens per second. The estimate is 80 % of the measured memory bandwidth divided by the bytes read per token,
without lookahead.

## Short names

"""
NAMES = """
Short names work wherever a model is named. Each refers to a published GGUF file, from the model's authors where they
provide one.

The default model (`default`, 135 million parameters) demonstrates the program. It writes short programs and fluent
sentences, many of them untrue, and repeats itself in long answers.

## Models by name

The speed is an estimate without lookahead: {reached:.0%} of the memory bandwidth divided by the bytes read per token.
Mixtures of experts (`-a3b`, `-a4b`, `-a1b`, `gpt-oss-20b`) read the experts of one token. *drafts from* names the
source of drafts in addition to n-grams: an MTP head, which `pull` downloads too, or a smaller model for
`--draft-model`. Models that take [images](images.md) have a vision part of 0.1 to 1 GB, which `pull` downloads too.

"""
SERIES = """
File names and sizes come from public download lists; `ipex-lookahead pull --json` prints the source of each entry.
Nothing was downloaded by the developers. `pull` checks size and checksum against the hub, not against this list.

### Names without a size

A series without a size (`qwen3.6`, `gemma4`, `granite4`), with or without `:latest`, is its largest model that needs
at most {share:.0%} of the machine's memory and reads at most {read:.0f} GB per token. A line on standard error names
the choice. Ollama's `name:tag` (`qwen3.5:4b`, `qwen3.6:35b`) and names of repositories (`Qwen3.6-35B-A3B`,
`gemma-4-12b-it`) work too. An unknown name is an error that suggests similar ones.

"""
TAIL = """
## How to choose

- **Prefer a larger model in 4 bits to a smaller one in 8 bits**, if both are fast enough.
- **Decoding speed is roughly the memory bandwidth divided by the bytes read per token.** `ipex-lookahead info`
  measures the bandwidth.
- **Mixture-of-experts models** need memory for all experts, and read only a few of them per token. They decode as fast
  as much smaller models.
- **Quantize once, from the original.** Quantizing a 4-bit file again loses more: the default model has perplexity 29.1
  in its own Q4_1, and 38.7 after conversion to `sym_int4`. Omit `--low-bit` for GGUF files.
- **For long contexts** use `--kv-cache int8`, or a model with few KV heads.

## Memory by model

A model needs its weights, the KV cache of the context in use, and about 0.3 GB for the program. One billion parameters
take 0.56 GB in `sym_int4`, 1.06 GB in `sym_int8` and 2 GB in `bf16`.

| model | `sym_int4` | `sym_int8` | KV cache per 1,000 tokens (`int8`) | `sym_int4` with 4,096 tokens |
|---|---|---|---|---|
| SmolLM2-135M | 0.08 GB | 0.14 GB | 0.02 GB | 0.5 GB |
| Gemma 3 270M | 0.15 GB | 0.29 GB | 0.02 GB | 0.5 GB |
| TinyLlama-1.1B | 0.58 GB | 1.10 GB | 0.02 GB | 1 GB |
| Gemma 3 1B | 0.56 GB | 1.06 GB | 0.03 GB | 1 GB |
| Gemma 2 2B | 1.47 GB | 2.78 GB | 0.11 GB | 2.2 GB |
| Gemma 3 4B | 2.18 GB | 4.12 GB | 0.14 GB | 3.1 GB |
| Qwen3.5-4B | 2.37 GB | 4.47 GB | 0.03 GB, plus 0.05 GB | 2.9 GB |
| Gemma 4 E2B (reads 1.28 GB per token) | 2.60 GB | 4.92 GB | 0.02 GB | 3 GB |
| Llama-2-7B | 3.72 GB | 7.02 GB | 0.52 GB (0.27) | 6.2 GB (5.1) |
| OLMo 2 7B, OLMo 3 7B | 4.11 GB | 7.76 GB | 0.52 GB | 6.6 GB |
| Gemma 4 E4B (reads 2.61 GB per token) | 4.20 GB | 7.93 GB | 0.06 GB | 4.7 GB |
| Gemma 2 9B | 5.20 GB | 9.82 GB | 0.34 GB | 6.9 GB |
| Qwen3.5-9B (reads 4.47 GB per token) | 6.50 GB | 10.5 GB | 0.03 GB, plus 0.05 GB | 7 GB |
| Llama-2-13B | 7.23 GB | 14 GB | 0.82 GB (0.42) | 11 GB (9.3) |
| Gemma 4 31B | 17.3 GB | 32.6 GB | 0.90 GB (0.46) | 21 GB |

Multimodal models are listed with their text part. The rows of Gemma 4 and Qwen3.5 are computed from the shapes; the
others were measured with random weights. Models with recurrent layers need a constant state in addition to the KV
cache. Llama 3, SmolLM2 and TinyLlama have few KV heads, and need a fraction of the KV cache of Llama-2-7B or OLMo.

Mixture-of-experts models, computed from their shapes:

| model | `sym_int4` | its own MXFP4 | KV cache per 1,000 tokens (`int8`) | read per token |
|---|---|---|---|---|
| LFM2-8B-A1B | 4.7 GB | | 0.01 GB | 0.9 GB |
| gpt-oss-20b | 12.6 GB | 13.8 GB | 0.05 GB (0.03) | 2.0 GB (MXFP4 3.7) |
| Gemma 4 26B-A4B | 14.2 GB | | 0.23 GB (0.11) | 2.2 GB |
| GLM-4.7-Flash | 17.3 GB | | 0.10 GB (0.05) | 2.0 GB |
| Qwen3-30B-A3B | 17.6 GB | | 0.10 GB (0.05) | 1.7 GB |
| Qwen3.5-35B-A3B | 20.3 GB | | 0.02 GB, plus 0.07 GB | 1.7 GB |
| Mixtral 8x7B | 26.5 GB | | 0.13 GB (0.07) | 7.2 GB |
| gpt-oss-120b | 66.5 GB | 65.2 GB | 0.07 GB (0.04) | 2.9 GB (5.1) |

Loading on the torch engine needs the memory of the float model first. A folder written by `quantize` avoids this.

This page is made by `scripts/which_model_doc.py` from `ipex_lookahead/hub/recommended.yaml`; do not edit it.
"""


def text() -> str:
    """Return the whole page."""
    models = [*recommended_models().values()]
    return (
        HEAD
        + _by_memory(models)
        + NAMES.format(reached=REACHED)
        + _by_name(models)
        + _unconfirmed(models)
        + SERIES.format(share=MEMORY_SHARE, read=MAX_READ / 1e9)
        + _defaults(models)
        + TAIL
    )


def _by_memory(models: Sequence[Recommended]) -> str:
    rows: dict[float, list[str]] = {}
    for model in models:
        rows.setdefault(next(free for free in FREE if model.memory <= free * 1e9), []).append(f"`{model.name}`")
    return _table(["free memory", "short names"], [[f"{free} GB", ", ".join(rows[free])] for free in sorted(rows)])


def _by_name(models: Sequence[Recommended]) -> str:
    speeds = [f"tok/s at {bandwidth} GB/s" for bandwidth in BANDWIDTHS]
    return _table(
        [
            "short name",
            "file",
            "license",
            "bytes",
            "memory",
            "read per token",
            *speeds,
            "images",
            "drafts from",
            "size confirmed",
        ],
        [
            [
                f"`{one.name}`",
                _file(one),
                one.license,
                f"{one.download:,}",
                f"{one.memory / 1e9:.1f} GB",
                f"{one.read / 1e9:.2f} GB",
                *(f"{expected_tok_s(one, 1e9 * bandwidth):.{0 if bandwidth > 60 else 1}f}" for bandwidth in BANDWIDTHS),
                "yes" if one.sees else "",
                one.drafts,
            ]
            for one in models
        ],
    )


def _file(model: Recommended) -> str:
    found = parse_name(model.model)
    assert isinstance(found, HubName)
    return f"`{found.file}` of [{found.repo}](https://huggingface.co/{found.repo})"


def _unconfirmed(models: Sequence[Recommended]) -> str:
    names = [f"`{model.name}`" for model in models if not model.is_confirmed]
    return f"\nThe sizes of {', '.join(names)} were found in one list only.\n" if names else ""


def _defaults(models: Sequence[Recommended]) -> str:
    series: dict[str, list[Recommended]] = {}
    for model in models:
        series.setdefault(model.series, []).append(model)
    rows = [
        [f"`{name}`", *(f"`{default_size(sizes, memory * 10**9).name}`" for memory in MACHINES)]
        for name, sizes in sorted(series.items())
        if len(sizes) > 1
    ]
    return _table(["series", *(f"{memory} GB" for memory in MACHINES)], rows)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (headings, *rows)]
    return "\n".join([lines[0], "|---" * len(headings) + "|", *lines[1:], ""])


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    print(f"wrote {FILE}")
