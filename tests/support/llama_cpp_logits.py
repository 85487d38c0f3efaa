"""Run by another Python: llama.cpp's float32 logits of token ids.

    PYTHON llama_cpp_logits.py REQUESTS

REQUESTS is a JSON file: a list of {"model": GGUF file, "ids": [...], "context": n, "into": .npy file}, and optionally
{"lora": GGUF adapter, "scale": x}. Needs numpy and
llama-cpp-python and nothing else; keys and values are float32, one thread, all in one step.
"""

import ctypes
import json
import sys

import llama_cpp
import numpy as np


def logits_of(request):
    """Float32 [n, vocab] of all positions."""
    ids = request["ids"]
    model = llama_cpp.llama_model_load_from_file(request["model"].encode(), model_parameters())
    if not model:
        raise SystemExit(f"llama.cpp does not load {request['model']}")
    context = llama_cpp.llama_init_from_model(model, context_parameters(request["context"]))
    if not context:
        raise SystemExit(f"llama.cpp does not run {request['model']}")
    if "lora" in request:
        adapter = llama_cpp.llama_adapter_lora_init(model, request["lora"].encode())
        if not adapter:
            raise SystemExit(f"llama.cpp does not load {request['lora']}")
        adapters = (llama_cpp.llama_adapter_lora_p_ctypes * 1)(adapter)
        llama_cpp.llama_set_adapters_lora(context, adapters, 1, (ctypes.c_float * 1)(request["scale"]))
    batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for i, token in enumerate(ids):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, True
        batch.seq_id[i][0] = 0
    if llama_cpp.llama_decode(context, batch):
        raise SystemExit(f"llama.cpp fails on {request['model']}")
    vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    rows = [
        np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, i), shape=(vocab,)).copy()
        for i in range(len(ids))
    ]
    llama_cpp.llama_batch_free(batch)
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)
    return np.stack(rows).astype(np.float32)


def model_parameters():
    parameters = llama_cpp.llama_model_default_params()
    parameters.n_gpu_layers = 0
    parameters.use_extra_bufts = False  # weights packed for AMX or by rows: not made for matrices this small
    return parameters


def context_parameters(length):
    parameters = llama_cpp.llama_context_default_params()
    parameters.n_ctx = parameters.n_batch = parameters.n_ubatch = length
    parameters.n_threads = parameters.n_threads_batch = 1
    parameters.type_k = parameters.type_v = 0  # GGML_TYPE_F32
    parameters.flash_attn_type = 0
    parameters.offload_kqv = False
    return parameters


def main():
    errors = []

    def log(level, text, _):
        if level >= 3:  # warnings and errors
            errors.append(text.decode(errors="replace"))

    keep = llama_cpp.llama_log_callback(log)
    llama_cpp.llama_log_set(keep, ctypes.c_void_p(0))
    try:
        with open(sys.argv[1], encoding="utf-8") as file:
            for request in json.load(file):
                del errors[:]
                np.save(request["into"], logits_of(request))
    except SystemExit as error:
        raise SystemExit(f"{error}: {''.join(errors)}") from None


if __name__ == "__main__":
    main()
