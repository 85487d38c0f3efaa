"""The programs that ``benchmarks.compare`` runs, one per file, each in its own process (``child.py``).

A file has ``DISTRIBUTION``, the package whose version is reported, and ``load(request)``, which gives an object with
``weights`` (what it runs, in words), ``lookup`` (what drafts there, in words) and ``answer``; see ``child.Loaded``.
It is run by the interpreter where that package is installed, Python 3.9 or newer, which need not have ours: a peer's
file imports the standard library, its own package and what comes with that.
"""

from __future__ import annotations

OURS = "ipex-lookahead"
PEERS = {
    OURS: "ours",
    "llama-cpp-python": "llama_cpp_python",
    "openvino-genai": "openvino",
    "transformers": "huggingface",
    "ipex-llm": "ipex_llm",
}
"""Name -> file; the first is the one that the others are compared with."""
READS = {
    "llama-cpp-python": "GGUF files",
    "openvino-genai": "GGUF files and OpenVINO folders",
    "transformers": "Hugging Face folders and GGUF files, in bfloat16",
    "ipex-llm": "Hugging Face folders, in its own low-bit formats",
}
"""Name of another program -> the checkpoints that it reads."""
