// Threads that step, keep, crop, fork, set weights and ask for them on the same cache and decoder at the same time, for ThreadSanitizer:
// what comes at a bad moment is refused, and what is not refused is right to the bit.
//
// All tokens are the same, so that the logits after n positions are known for every n.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

#include "model/decoder.h"
#include "tiny_shape.h"

using namespace ipex_lookahead;

namespace {

constexpr int kVocab = 100, kHidden = 64, kLongest = 90, kThreads = 2;
constexpr int32_t kToken = 3;

// Of different sizes: a late thread must not take one block's experts for the other's.
DecoderShape with_mixtures() {
  DecoderShape shape = tiny_shape();
  shape.layers[0].experts = 3;
  shape.layers[1].experts = 40;
  for (Layer& layer : shape.layers) layer.experts_used = 2;
  return shape;
}

struct Model {
  std::vector<uint8_t> codes = std::vector<uint8_t>(size_t(kVocab * 96));
  std::vector<uint16_t> scales = std::vector<uint16_t>(size_t(kVocab * 3), 0x2400);
  std::vector<float> ones = std::vector<float>(kHidden, 1.0f), router;
  Decoder decoder{with_mixtures(), kThreads, ""};

  Model() {
    for (size_t i = 0; i < codes.size(); ++i) codes[i] = uint8_t(i * 37 + i / 96);
    for (int layer = 0; layer < 2; ++layer) {
      for (Vector norm : {Vector::attention_norm, Vector::mlp_norm}) decoder.set_vector(layer, norm, ones.data());
      const int outs[] = {64, 32, 32, 64, 96, 96, 64}, ins[] = {64, 64, 64, 64, 64, 64, 96};
      const int experts = decoder.shape().layers[size_t(layer)].experts;
      for (int s = 0; s < 7; ++s)
        for (int e = 0; e < (s < 4 ? 1 : experts); ++e)
          decoder.set_matrix(layer, Slot(s), matrix(outs[s], ins[s]), nullptr, s < 4 ? -1 : e);
      router.resize(size_t(experts * kHidden));
      for (size_t i = 0; i < router.size(); ++i) router[i] = float(i * 37 % 101) / 100 - 0.5f;
      decoder.set_matrix(layer, Slot::router, {WeightFormat::fp32, experts, kHidden, 0, router.data(), nullptr, nullptr},
                         nullptr);
    }
    decoder.set_final_norm(ones.data());
    decoder.set_lm_head(matrix(kVocab, kHidden), nullptr);
    decoder.tie_embedding();
  }
  PlainMatrix matrix(int64_t n_out, int64_t n_in) const {
    return {WeightFormat::sym_int8, n_out, n_in, 32, codes.data(), scales.data(), nullptr};
  }
};

// The logits of the last row.
std::vector<float> step(Decoder& decoder, KVCache& cache, const std::vector<int32_t>& parents) {
  const std::vector<int32_t> tokens(parents.size(), kToken);
  const int32_t last = int32_t(parents.size() - 1);
  std::vector<int32_t> ids(1);
  std::vector<float> logits(kVocab);
  Step step;
  step.caches = {&cache};
  step.counts = {int64_t(parents.size())};
  step.tokens = tokens.data();
  step.parents = parents.data();
  step.rows = int64_t(parents.size());
  step.want = &last;
  step.wanted = 1;
  StepOutputs outputs;
  outputs.ids = ids.data();
  outputs.logits = logits.data();
  decoder.forward(step, outputs);
  return logits;
}

const std::vector<int32_t> kOne = {-1}, kTree = {-1, -1, 1};  // rows 1 and 2 of the tree are a path

std::atomic<int> refused{0}, done{0};

// One deed of a thread; another thread's turn is no fault.
template <typename Deed>
bool attempt(const Deed& deed) {
  try {
    deed();
    done.fetch_add(1);
    return true;
  } catch (const std::runtime_error& error) {
    if (std::strstr(error.what(), "in use by another thread") == nullptr) throw;
    refused.fetch_add(1);
    return false;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 300;
  Model model;
  Decoder& decoder = model.decoder;
  std::vector<std::vector<float>> expected(1);  // after n positions
  KVCache alone = decoder.new_cache();
  const int64_t one[] = {0}, path[] = {1, 2};
  for (int n = 1; n <= kLongest + 8; ++n) {
    expected.push_back(step(decoder, alone, kOne));
    alone.keep(one, 1);
  }

  KVCache shared = decoder.new_cache();
  for (int n = 0; n < 60; ++n) {
    step(decoder, shared, kOne);
    shared.keep(one, 1);
  }
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  // Steps that nobody keeps; the shared cache's length may be any, and is not to be read here.
  std::thread stepper([&] {
    while (!stop) attempt([&] { step(decoder, shared, kTree); });
  });
  std::thread forker([&] {
    while (!stop)
      attempt([&] {
        KVCache own = shared.fork();
        const int64_t length = own.length();
        wrong += step(decoder, own, kTree) != expected[size_t(length + 2)];
        own.keep(path, 2);
        wrong += step(decoder, own, kOne) != expected[size_t(length + 3)];
        own.crop(length / 2);
      });
  });
  std::thread setter([&] {
    while (!stop) {
      decoder.set_vector(1, Vector::mlp_norm, model.ones.data());
      decoder.set_matrix(0, Slot::q, model.matrix(64, 64), nullptr);
      std::this_thread::yield();
    }
  });
  std::thread asker([&] {
    while (!stop) {
      wrong += decoder.matrix(0, Slot::q).n_out != 64 || !decoder.missing().empty() || decoder.weight_bytes() == 0;
      std::this_thread::yield();
    }
  });
  // Only this thread changes the length: a row more, or back to some page's middle, end or beginning.
  for (int round = 0; round < rounds; ++round) {
    if (shared.length() >= kLongest) {
      attempt([&] { shared.crop(60 + round % 7); });
      continue;
    }
    try {
      attempt([&] { shared.keep(path, round % 2 + 1); });
    } catch (const std::invalid_argument&) {  // there was no step since the last keep
      std::this_thread::yield();
    }
  }
  for (int steps = 0; steps < 20;) steps += attempt([&] { step(decoder, shared, kOne); });
  stop = true;
  stepper.join();
  forker.join();
  setter.join();
  asker.join();
  if (wrong != 0 || step(decoder, shared, kOne) != expected[size_t(shared.length() + 1)]) {
    std::fputs("cache_in_use_test: logits differ from those of a cache that nobody else used\n", stderr);
    return 1;
  }
  if (refused == 0 || done == 0) {
    std::fprintf(stderr, "cache_in_use_test: %d deeds were refused and %d done\n", refused.load(), done.load());
    return 1;
  }
  std::puts("cache_in_use_test: ok");
}
