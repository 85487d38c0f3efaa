// A decoder's weights by name. A name is the path of fields in the description, such as layers.0.mixer.q.weight.
//
// Operations declare their weights with shape and use. Setting, exporting, counting and checking walk this list.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
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

// Methods that change it hold the process's thread pool (a Crew).
class DecoderWeights {
 public:
  explicit DecoderWeights(int threads) : threads_(threads) {}

  // Use of a matrix: its phases, the number of reads per step of one row, whether it must be float, and where the order of its
  // inputs is stored (null: no order).
  struct Use {
    Phase phase;
    int64_t reads = 1;
    bool floats = false;
    const int32_t** order = nullptr;
  };
  // The referenced fields must not move. A linear layer has `name`.weight and an optional `name`.bias.
  void declare_linear(const std::string& name, Matrix& at, int64_t n_out, int64_t n_in, const Use& use);
  void declare(const std::string& name, Matrix& at, int64_t n_out, int64_t n_in, const Use& use);
  void declare(const std::string& name, const float*& at, int64_t n);

  // Lets adapters change linear layers that read the same inputs. `order`: where the order of these inputs is stored, or null.
  void take_adapters(std::initializer_list<const Matrix*> layers, const int32_t* const* order = nullptr);
  // A matrix that takes an adapter, with the order of its inputs (null: the model's). Throws std::invalid_argument for others.
  struct Adaptable {
    const Matrix* matrix;
    int64_t n_out, n_in;
    const int32_t* order;
  };
  Adaptable adaptable(const std::string& name) const;
  int threads() const { return threads_; }

  // Weights are copied into one arena; set them in the order in which a step reads them, so that it reads memory sequentially.
  // Throw std::invalid_argument for an unknown name, or a weight of another shape or format than declared.
  void set_matrix(const std::string& name, const PlainMatrix& plain);
  // Copies an undeclared matrix, which lives as long as this object.
  Matrix hold(const PlainMatrix& plain);
  // Uses a matrix of another decoder, which must outlive this one.
  void share_matrix(const std::string& name, const Matrix& other);
  void set_vector(const std::string& name, const float* values, int64_t n);
  // Input i of the matrix, and of all matrices with the same inputs, is value order[i]. Throws std::invalid_argument if
  // `order` is not a permutation, or if the matrix takes no order.
  void set_order(const std::string& name, const int32_t* order, int64_t n);

  // Return a weight, which lives as long as this object; null for a missing bias. Throw std::invalid_argument for an unknown
  // name, MissingWeightError for a weight that is not set.
  Matrix matrix(const std::string& name) const;
  const float* vector(const std::string& name, int64_t* n) const;

  std::pair<int64_t, int64_t> shape(const std::string& name) const;  // (n_out, n_in), or (n, 0) for a vector
  int64_t orders() const { return orders_; }  // number of orders set; the caller must hold a Crew
  std::string missing() const;  // name of the first missing weight, or ""
  void check_complete();        // throws MissingWeightError
  size_t bytes() const;
  // Bytes of matrices that a step of one row reads, per kind of phase.
  std::array<int64_t, kPhaseKinds> phase_bytes() const;

 private:
  struct Weight {
    std::string name;
    Matrix* matrix;          // null for a vector
    const float** vector;    // null for a matrix
    int64_t n_out, n_in;     // n_out is the length of a vector
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
  std::unordered_map<const Matrix*, const int32_t* const*> adaptable_;  // where the orders of their inputs are stored
  bool complete_ = false;  // nothing is missing
  int64_t orders_ = 0;
};

}  // namespace ipex_lookahead
