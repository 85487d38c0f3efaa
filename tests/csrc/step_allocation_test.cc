// A decoding step allocates no heap memory: counted in operator new, over rows, trees and threads.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <vector>

#include "model/decoder.h"
#include "tiny_shape.h"

static std::atomic<long> allocations{0};

void* operator new(std::size_t size) {
  allocations.fetch_add(1);
  if (void* p = std::malloc(size ? size : 1)) return p;
  throw std::bad_alloc();
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  allocations.fetch_add(1);
  const std::size_t to = std::size_t(alignment);
  if (void* p = std::aligned_alloc(to, (size + to - 1) / to * to)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }

using namespace ipex_lookahead;

namespace {

struct Weights {
  std::vector<uint8_t> codes;
  std::vector<uint16_t> scales;
  std::vector<float> floats;
  PlainMatrix router(int64_t n_out, int64_t n_in) {
    floats.assign(size_t(n_out * n_in), 0.01f);
    return {WeightFormat::fp32, n_out, n_in, 0, floats.data(), nullptr, nullptr};
  }
  PlainMatrix matrix(int64_t n_out, int64_t n_in) {
    codes.assign(size_t(n_out * code_bytes(WeightFormat::sym_int4, n_in)), 0x5a);
    scales.assign(size_t(n_out * groups_of(WeightFormat::sym_int4, n_in, 32)), 0x2400);
    return {WeightFormat::sym_int4, n_out, n_in, 32, codes.data(), scales.data(), nullptr};
  }
};

long count_in_step(Decoder& decoder, Cache& cache, const std::vector<int32_t>& parents, bool logits) {
  const int64_t rows = int64_t(parents.size());
  std::vector<int32_t> tokens(parents.size(), 3), want(parents.size()), ids(parents.size());
  for (size_t i = 0; i < want.size(); ++i) want[i] = int32_t(i);
  std::vector<float> out(parents.size() * size_t(decoder.shape().vocab));
  Step step;
  step.caches = {&cache};
  step.counts = {rows};
  step.settled = {0};
  step.tokens = tokens.data();
  step.parents = parents.data();
  step.rows = rows;
  step.want = want.data();
  step.wanted = rows;
  const int32_t layers[] = {kFinalNorm, 0, 2};
  std::vector<float> states(3 * parents.size() * size_t(decoder.shape().hidden));
  StepOutputs outputs;
  outputs.ids = ids.data();
  if (logits) {  // and all other outputs
    outputs.logits = out.data();
    outputs.hidden_layers = layers;
    outputs.layers = 3;
    outputs.hidden_rows = want.data();
    outputs.hidden_wanted = rows;
    outputs.hidden = states.data();
  }
  const long before = allocations.load();
  decoder.forward(step, outputs);
  return allocations.load() - before;
}

void set_weights(Decoder& decoder) {
  Weights w;
  for (std::string name; !(name = decoder.weights().missing()).empty();) {
    const auto [n_out, n_in] = decoder.weights().shape(name);
    const bool router = name.find(".router.") != std::string::npos;
    if (n_in > 0)
      decoder.weights().set_matrix(name, router ? w.router(n_out, n_in) : w.matrix(n_out, n_in));
    else
      decoder.weights().set_vector(name, std::vector<float>(size_t(n_out), 1.0f).data(), n_out);
  }
}

// Windows, sinks, norms after operations, heads of several sizes, and mixtures of different sizes.
DecoderShape with_switches() {
  DecoderShape shape = tiny_shape();
  for (size_t i = 0; i < 2; ++i) {
    BlockShape& layer = shape.layers[i];
    auto& attention = std::get<AttentionShape>(layer.mixer->operation);
    attention.sinks = true;
    if (i == 0) attention.window = 7;
    if (i == 1) attention.kv_heads = 1;
    attention.q_norm = {attention.q_width(), 1e-5f};
    attention.k_norm = {attention.kv_width(), 1e-5f};
    layer.mixer->after = layer.feed_forward->after = shape.final_norm;
    const MlpShape mlp = std::get<MlpShape>(layer.feed_forward->operation);
    layer.feed_forward->operation = ExpertsShape{std::vector<MlpShape>(i == 0 ? 3 : 70, mlp), i == 0 ? 1 : 2};
  }
  return shape;
}

int check_steps(const DecoderShape& shape, int threads) {
  Decoder decoder(shape, threads, "");
  set_weights(decoder);
  Cache cache = decoder.new_cache();
  const std::vector<std::vector<int32_t>> shapes = {{-1}, {-1, 0, 1, 2}, {-1, 0, 0, 1, 2, 2, 4, 0},
                                                 std::vector<int32_t>(20, -1)};
  // The first steps of each kind may grow buffers; a KV page is allocated every 64 positions.
  for (int warm = 0; warm < 2; ++warm)
    for (const auto& parents : shapes)
      for (bool logits : {false, true}) count_in_step(decoder, cache, parents, logits);
  for (int position = 0; position < 40; ++position) {
    for (const auto& parents : shapes)
      for (bool logits : {false, true}) {
        const long count = count_in_step(decoder, cache, parents, logits);
        if (count != 0) {
          std::fprintf(stderr, "a step of %zu rows on %d threads allocated %ld times\n", parents.size(), threads, count);
          return 1;
        }
      }
    const int64_t path[] = {0};
    cache.keep(path, 1);
  }
  return 0;
}

}  // namespace

int main() {
  for (int threads : {1, 2, 5})
    for (const DecoderShape& shape : {tiny_shape(), with_switches()})
      if (check_steps(shape, threads) != 0) return 1;
  std::puts("step_allocation_test: ok");
}
