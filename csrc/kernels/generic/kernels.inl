// Everything one instruction set offers, in the order the pieces need each other. Included inside its namespace.

#include "elementwise.inl"
#include "linear.inl"
#include "attention.inl"
#include "recurrence.inl"

static const KernelTable* table(const char* name) {
  static const KernelTable kernels = {name,
                                      linear,
                                      gate_up,
                                      activate,
                                      dequantize_row,
                                      rms_norm,
                                      layer_norm,
                                      quantize_row,
                                      rope,
                                      {Fp16::store_key, Int8::store_key},
                                      {Fp16::store_value, Int8::store_value},
                                      {Fp16::prepare_query, Int8::prepare_query},
                                      {attend<Fp16>, attend<Int8>},
                                      merge,
                                      scale,
                                      clamp,
                                      add_scaled,
                                      cap,
                                      softmax,
                                      finish,
                                      top_k,
                                      gate,
                                      convolve,
                                      recurrence_steps,
                                      bounded_decays,
                                      exponentials,
                                      recur,
                                      read,
                                      integer_peak};
  return &kernels;
}
