"""Run by another Python: llama.cpp's float32 rows of texts in encoders, before pooling.

    PYTHON llama_cpp_rows.py REQUESTS

REQUESTS is a JSON file: a list of {"model": GGUF file, "ids": [...], "into": .npy file}. Needs numpy and
llama-cpp-python and nothing else; one thread, all in one step. Token types are 0.
"""

import json
import sys

import llama_cpp
import numpy as np


def rows_of(request):
    """Float32 [n, hidden] of all positions."""
    ids = request["ids"]
    parameters = llama_cpp.llama_model_default_params()
    parameters.n_gpu_layers = 0
    parameters.use_extra_bufts = False  # weights packed for AMX or by rows: not made for matrices this small
    model = llama_cpp.llama_model_load_from_file(request["model"].encode(), parameters)
    if not model:
        raise SystemExit(f"llama.cpp does not load {request['model']}")
    options = llama_cpp.llama_context_default_params()
    options.n_ctx = options.n_batch = options.n_ubatch = 64
    options.n_threads = options.n_threads_batch = 1
    options.embeddings = True
    options.pooling_type = llama_cpp.LLAMA_POOLING_TYPE_NONE
    options.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    context = llama_cpp.llama_init_from_model(model, options)
    if not context:
        raise SystemExit(f"llama.cpp does not run {request['model']}")
    batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for i, token in enumerate(ids):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, True
        batch.seq_id[i][0] = 0
    if llama_cpp.llama_encode(context, batch):
        raise SystemExit(f"llama.cpp fails on {request['model']}")
    width = llama_cpp.llama_model_n_embd(model)
    found = [
        np.ctypeslib.as_array(llama_cpp.llama_get_embeddings_ith(context, i), shape=(width,)).copy()
        for i in range(len(ids))
    ]
    llama_cpp.llama_batch_free(batch)
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)
    return np.stack(found).astype(np.float32)


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        requests = json.load(file)
    llama_cpp.llama_backend_init()
    for request in requests:
        np.save(request["into"], rows_of(request))
