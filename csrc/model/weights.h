// A decoder's weights by name: the fields that lead to each in the description, as in layers.0.mixer.q.weight.
//
// Operations declare theirs once, with the shape they must have and where they are read; to set, to give back, to count and
// to find what is missing goes over the list.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/kernels.h"
#include "model/phase_times.h"
#include "runtime/arena.h"
#include "runtime/thread_pool.h"
#include "weights/packing.h"

namespace ipex_lookahead {

// Whoever changes them holds the process's threads meanwhile (a Crew).
class DecoderWeights {
 public:
  explicit DecoderWeights(int threads) : threads_(threads) {}

  // How a matrix is used: in which phases, how often it is read in a step of one row, whether it must be in floats, and,
  // unless null, where the order is held that its inputs may have.
  struct Use {
    Phase phase;
    int64_t reads = 1;
    bool floats = false;
    const int32_t** order = nullptr;
  };
  // What is declared stays where it is. A linear layer is `name`.weight, and `name`.bias, which may be missing.
  void declare_linear(const std::string& name, Matrix& at, int64_t n_out, int64_t n_in, const Use& use);
  void declare(const std::string& name, Matrix& at, int64_t n_out, int64_t n_in, const Use& use);
  void declare(const std::string& name, const float*& at, int64_t n);

  // Weights are copied; call in the order in which a step reads them, so that it reads memory from front to back. Throw
  // std::invalid_argument for a name that there is not, or a weight of another shape or format than its place has.
  void set_matrix(const std::string& name, const PlainMatrix& plain);
  // A matrix beside those that were declared, which lives as long as this.
  Matrix hold(const PlainMatrix& plain);
  // The matrix is another decoder's, which must outlive this one.
  void share_matrix(const std::string& name, const Matrix& other);
  void set_vector(const std::string& name, const float* values, int64_t n);
  // Input i of the matrix, and of those that are given the same inputs, is value order[i] of these. Throws
  // std::invalid_argument for what is no permutation, and a matrix whose inputs have no order of their own.
  void set_order(const std::string& name, const int32_t* order, int64_t n);

  // What was set lives as long as this. Throw std::invalid_argument for a name that there is not, MissingWeightError
  // for a weight that was not set; a bias that was not is null.
  Matrix matrix(const std::string& name) const;
  const float* vector(const std::string& name, int64_t* n) const;

  std::pair<int64_t, int64_t> shape(const std::string& name) const;  // (n_out, n_in), of a vector (n, 0)
  int64_t orders() const { return orders_; }  // set so far; for who holds a Crew
  std::string missing() const;  // the first weight that was not set, or ""
  void check_complete();        // throws MissingWeightError
  size_t bytes() const;
  // Bytes of matrices that phases of a kind read in a step of one row.
  std::array<int64_t, kPhaseKinds> phase_bytes() const;

 private:
  struct Weight {
    std::string name;
    Matrix* matrix;          // or null, and then
    const float** vector;    // this is not
    int64_t n_out, n_in;     // of a vector n_out values
    Use use;
    bool optional;
    bool is_set() const { return matrix != nullptr ? matrix->codes != nullptr : *vector != nullptr; }
  };

  void add(const Weight& weight);
  const Weight& at(const std::string& name) const;
  const Weight& at(const std::string& name, bool matrix) const;
  std::string absent() const;

  const int threads_;
  Arena arena_;
  std::vector<Weight> weights_;
  std::unordered_map<std::string, size_t> places_;
  bool complete_ = false;  // nothing is missing
  int64_t orders_ = 0;
};

}  // namespace ipex_lookahead
