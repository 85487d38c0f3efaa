"""The programs of ``benchmarks.compare`` and ``scoreboard``, one per file, each in its own process (``child.py``).

A file has ``DISTRIBUTION``, the name of the package for its version, and ``load(request)``, which returns an object
with ``weights`` (description of the weights), ``modes`` (descriptions of the drafts) and ``answer``; see
``child.Loaded``. The interpreter of that package, Python 3.9 or newer, runs it without our package: the file of a peer
imports the standard library, its own package and the dependencies of that.
"""

from __future__ import annotations

OURS = "ipex-lookahead"
PEERS = {
    OURS: "ours",
    "llama-cpp-python": "llama_cpp_python",
    "llama-server": "llama_server",
    "openvino-genai": "openvino",
    "transformers": "huggingface",
    "ipex-llm": "ipex_llm",
}
"""Name -> file; the first is the one that the others are compared with."""
READS = {
    "llama-cpp-python": "GGUF files",
    "llama-server": "GGUF files",
    "openvino-genai": "GGUF files and OpenVINO folders",
    "transformers": "Hugging Face folders and GGUF files, in bfloat16",
    "ipex-llm": "Hugging Face folders, in its own low-bit formats",
}
"""Name of another program -> the checkpoints that it reads."""
