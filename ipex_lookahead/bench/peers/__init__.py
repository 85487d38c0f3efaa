"""Other programs that ``bench compare`` runs beside ours, one a file, each in a process of its own (``child.py``).

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
"""Name -> file; the first is what the others stand beside."""
