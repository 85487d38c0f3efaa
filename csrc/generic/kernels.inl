// Everything one instruction set offers, in the order the pieces need each other. Included inside its namespace.

#include "elementwise.inl"
#include "linear.inl"
#include "attention.inl"

static const KernelTable* table(const char* name) {
  static const KernelTable kernels = {name,  linear, gate_up,   dequantize_row, rms_norm, quantize_row, rope,
                                      store_key, store_value, attend,         merge,    finish,       top_k};
  return &kernels;
}
