"""sentence-transformers for ``bench embed``: a program on its own, for a Python that has it.

It reads a JSON list of texts per line and writes ``{"seconds": ...}`` of one batch in float32.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def main(folder: str, threads: int) -> None:
    """Answer lines until standard input ends."""
    out, sys.stdout = sys.stdout, sys.stderr  # libraries may print
    del sys.path[0]  # this folder, which has modules with the names of packages
    import sentence_transformers  # type: ignore[import-not-found, unused-ignore]
    import torch

    if threads:
        torch.set_num_threads(threads)
    model: Any = sentence_transformers.SentenceTransformer(folder, device="cpu", local_files_only=True)
    model = model.float()
    print(json.dumps({"version": sentence_transformers.__version__}), file=out, flush=True)
    for line in sys.stdin:
        texts = json.loads(line)
        began = time.perf_counter()
        model.encode(texts, batch_size=len(texts), show_progress_bar=False)
        print(json.dumps({"seconds": time.perf_counter() - began}), file=out, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
