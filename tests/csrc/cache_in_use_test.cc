// Threads that step, keep, crop, fork, set weights and read them on the same cache and decoder at the same time, for
// ThreadSanitizer: conflicting calls are rejected, and all other results are exact to the bit.
//
// All tokens are the same, so the logits after n positions are known for every n.
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

// Mixtures of different sizes: a late thread must not use one block's experts for another block.
DecoderShape with_mixtures() {
  DecoderShape shape = tiny_shape();
  for (size_t i = 0; i < 2; ++i) {
    BranchShape& branch = *shape.layers[i].feed_forward;
    branch.operation = ExpertsShape{std::vector<MlpShape>(i == 0 ? 3 : 40, std::get<MlpShape>(branch.operation)), 2};
  }
  return shape;
}

struct Model {
  std::vector<uint8_t> codes = std::vector<uint8_t>(size_t(kVocab * 96));
  std::vector<uint16_t> scales = std::vector<uint16_t>(size_t(kVocab * 3), 0x2400);
  std::vector<float> ones = std::vector<float>(kHidden, 1.0f), router;
  Decoder decoder{with_mixtures(), kThreads, ""};

  Model() {
    for (size_t i = 0; i < codes.size(); ++i) codes[i] = uint8_t(i * 37 + i / 96);
    DecoderWeights& weights = decoder.weights();
    for (std::string name; !(name = weights.missing()).empty();) {
      const auto [n_out, n_in] = weights.shape(name);
      if (n_in == 0) {
        weights.set_vector(name, ones.data(), n_out);
      } else if (name.find(".router.") == std::string::npos) {
        weights.set_matrix(name, matrix(n_out, n_in));
      } else {
        router.resize(size_t(n_out * kHidden));
        for (size_t i = 0; i < router.size(); ++i) router[i] = float(i * 37 % 101) / 100 - 0.5f;
        weights.set_matrix(name, {WeightFormat::fp32, n_out, kHidden, 0, router.data(), nullptr, nullptr});
      }
    }
  }
  PlainMatrix matrix(int64_t n_out, int64_t n_in) const {
    return {WeightFormat::sym_int8, n_out, n_in, 32, codes.data(), scales.data(), nullptr};
  }
};

// The logits of the last row.
std::vector<float> step(Decoder& decoder, Cache& cache, const std::vector<int32_t>& parents) {
  const std::vector<int32_t> tokens(parents.size(), kToken);
  const int32_t last = int32_t(parents.size() - 1);
  std::vector<int32_t> ids(1);
  std::vector<float> logits(kVocab);
  Step step;
  step.caches = {&cache};
  step.counts = {int64_t(parents.size())};
  step.settled = {0};
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

// One action of a thread; rejection because of another thread is not a failure.
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
  Cache alone = decoder.new_cache();
  const int64_t one[] = {0}, path[] = {1, 2};
  for (int n = 1; n <= kLongest + 8; ++n) {
    expected.push_back(step(decoder, alone, kOne));
    alone.keep(one, 1);
  }

  Cache shared = decoder.new_cache();
  for (int n = 0; n < 60; ++n) {
    step(decoder, shared, kOne);
    shared.keep(one, 1);
  }
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  // Steps without keep(); the shared cache's length may have any value and must not be read here.
  std::thread stepper([&] {
    while (!stop) attempt([&] { step(decoder, shared, kTree); });
  });
  std::thread forker([&] {
    while (!stop)
      attempt([&] {
        Cache own = shared.fork();
        const int64_t length = own.length();
        wrong += step(decoder, own, kTree) != expected[size_t(length + 2)];
        own.keep(path, 2);
        wrong += step(decoder, own, kOne) != expected[size_t(length + 3)];
        own.crop(length / 2);
      });
  });
  std::thread setter([&] {
    while (!stop) {
      decoder.weights().set_vector("layers.1.feed_forward_norm.weight", model.ones.data(), kHidden);
      decoder.weights().set_matrix("layers.0.mixer.q.weight", model.matrix(64, 64));
      std::this_thread::yield();
    }
  });
  std::thread asker([&] {
    while (!stop) {
      const DecoderWeights& weights = decoder.weights();
      wrong += weights.matrix("layers.0.mixer.q.weight").n_out != 64 || !weights.missing().empty() || weights.bytes() == 0;
      std::this_thread::yield();
    }
  });
  // Only this thread changes the length: one row more, or back to the middle, end or beginning of a page.
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
