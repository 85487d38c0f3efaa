#include "model/adapters.h"

#include <algorithm>
#include <stdexcept>

namespace ipex_lookahead {
namespace {

constexpr int64_t kBandRows = 64;          // rows of an item, in steps of many rows
constexpr int64_t kPairLanes = 2 * kLanes;  // outputs of a pair of tiles

// Number of bands of an adapter's rows.
int64_t bands(const AdapterRows& rows) {
  int64_t sum = 0;
  for (const auto& [first, count] : rows.runs) sum += (count + kBandRows - 1) / kBandRows;
  return sum;
}

// The inputs of one part of A.
Rows part_of_inputs(Rows x, int64_t part) {
  x.values += part * kAdapterPart;
  return x;
}

}  // namespace

void Adapter::add(const std::string& name, const float* a, int64_t n_in, const float* b, int64_t n_out, int64_t rank, float scale) {
  const DecoderWeights::Adaptable matrix = of_.adaptable(name);
  if (matrix.n_out != n_out || matrix.n_in != n_in || rank < 1 || rank > kMaxRank)
    throw std::invalid_argument("an adapter's A [" + std::to_string(rank) + ", " + std::to_string(n_in) + "] and B [" +
                                std::to_string(n_out) + ", " + std::to_string(rank) + "] do not fit " + name + " [" +
                                std::to_string(matrix.n_out) + ", " + std::to_string(matrix.n_in) +
                                "], or their rank is above " + std::to_string(kMaxRank));
  if (of(*matrix.matrix) != nullptr) throw std::invalid_argument("the adapter changes " + name + " twice");
  LowRank change;
  change.rank = rank;
  change.scale = scale;
  Crew crew(of_.threads());
  const auto packed = [&](const float* values, int64_t outputs, int64_t inputs) {
    return prepack({WeightFormat::fp32, outputs, inputs, 0, values, nullptr, nullptr}, arena_, crew);
  };
  std::vector<float> part(size_t(rank * std::min(n_in, kAdapterPart)));
  for (int64_t first = 0; first < n_in; first += kAdapterPart) {
    const int64_t width = std::min(kAdapterPart, n_in - first);
    for (int64_t r = 0; r < rank; ++r)
      for (int64_t i = 0; i < width; ++i)  // in the order in which the matrix reads its inputs
        part[size_t(r * width + i)] = a[r * n_in + (matrix.order == nullptr ? first + i : matrix.order[first + i])];
    change.a.push_back(packed(part.data(), rank, width));
  }
  change.b = packed(b, n_out, rank);
  items_ = std::max(items_, change.tile_pairs() * change.parts());
  columns_ = std::max(columns_, change.columns());
  changes_.emplace(matrix.matrix, std::move(change));
}

void reserve_adapters(StepRows& rows) {
  if (rows.adapters.empty()) return;
  int64_t items = 0, columns = 0;
  for (const AdapterRows& one : rows.adapters) {
    items += kJoined * one.adapter->items();
    columns = std::max(columns, kJoined * one.adapter->columns());
  }
  if (rows.count > kPreparedByAll) {
    ensure(rows.projections, rows.count * columns);
  } else {
    ensure(rows.adapter_parts, items * rows.count * kPairLanes);
    for (ThreadMemory& one : rows.own) ensure(one.projections, rows.count * columns);
  }
  for (ThreadMemory& one : rows.own) one.adapted.reserve(size_t(kJoined) * rows.adapters.size());
}

bool adapted(const StepRows& rows, std::initializer_list<const Matrix*> matrices) {
  for (const AdapterRows& one : rows.adapters)
    for (const Matrix* matrix : matrices)
      if (one.adapter->of(*matrix) != nullptr) return true;
  return false;
}

void JoinedLinears::run(const KernelTable& kernels, const Rows& x, int64_t begin, int64_t end, float* out, int64_t stride,
                        Projections* projections) const {
  int64_t base = 0;
  for (const Part& part : parts) {
    if (part.matrix == nullptr) continue;
    const int64_t tiles = part.matrix->tiles(), from = std::max(begin - base, int64_t(0)), to = std::min(end - base, tiles);
    if (from < to) {
      float* const at = out + part.column + from * kLanes;
      kernels.linear(*part.matrix, x, from, to, at, stride, false);
      if (projections != nullptr) projections->add(*part.matrix, from, to, at, stride);
    }
    base += tiles;
  }
}

// Lists the changed matrices with the columns of their projections and their items.
void Projections::find(std::initializer_list<const Matrix*> matrices) {
  own_.adapted.clear();
  for (const AdapterRows& rows : rows_.adapters) {
    int64_t column = 0;
    for (const Matrix* matrix : matrices) {
      const LowRank* const change = rows.adapter->of(*matrix);
      if (change == nullptr) continue;
      const int64_t items = change->tile_pairs() * (few() ? change->parts() : bands(rows));
      own_.adapted.push_back({&rows, matrix, change, column, items_, items});
      column += change->columns();
      items_ += items;
    }
    stride_ = std::max(stride_, column);
  }
}

// The matrix that an item belongs to; `item` becomes its number among the matrix's items.
const AdaptedMatrix& Projections::matrix_of(int64_t& item) const {
  for (const AdaptedMatrix& one : own_.adapted) {
    if (item < one.items) return one;
    item -= one.items;
  }
  return own_.adapted.back();
}

// Few rows: an item is one part of the inputs for one pair of tiles, of all rows: [item][row][kPairLanes].
void Projections::project_part(const Rows& x, int64_t item) const {
  float* const out = rows_.adapter_parts.data() + item * rows_.count * kPairLanes;
  const AdaptedMatrix& one = matrix_of(item);
  const Matrix& a = one.change->a[size_t(item % one.change->parts())];
  const int64_t tile = 2 * (item / one.change->parts()), end = std::min(tile + 2, a.tiles());
  const Rows inputs = part_of_inputs(x, item % one.change->parts());
  for (const auto& [first, count] : one.rows->runs)
    rows_.kernels.linear(a, rows_of(inputs, first, count), tile, end, out + first * kPairLanes, kPairLanes, false);
}

// The sums of the parts, by every thread that needs them: no thread leaves the phase that reads the parts before it is done.
void Projections::sum_parts() {
  summed_ = true;
  for (const AdaptedMatrix& one : own_.adapted) {
    const int64_t parts = one.change->parts(), rank = one.change->rank;
    for (const auto& [begin, count] : one.rows->runs)
      for (int64_t row = begin; row < begin + count; ++row) {
        float* const projection = own_.projections.data() + row * stride_ + one.column;
        for (int64_t first = 0; first < rank; first += kPairLanes) {
          const int64_t n = std::min(kPairLanes, rank - first), item = one.first_item + first / kPairLanes * parts;
          const auto part = [&](int64_t p) { return rows_.adapter_parts.data() + ((item + p) * rows_.count + row) * kPairLanes; };
          std::copy_n(part(0), n, projection + first);
          for (int64_t p = 1; p < parts; ++p)
            for (int64_t i = 0; i < n; ++i) projection[first + i] += part(p)[i];
          finish(one, row, first, first + n, projection);
        }
      }
  }
}

// Many rows: an item is one pair of tiles for a band of rows, with all parts of the inputs in order.
void Projections::project(const Rows& x, int64_t item) const {
  const AdaptedMatrix& one = matrix_of(item);
  const LowRank& change = *one.change;
  const int64_t pairs = change.tile_pairs(), pair = item % pairs, rank = change.rank;
  int64_t band = item / pairs, row = 0, count = 0;
  for (const auto& [first, rows] : one.rows->runs) {
    const int64_t some = (rows + kBandRows - 1) / kBandRows;
    row = first + band * kBandRows;
    count = std::min(kBandRows, first + rows - row);
    if (band < some) break;
    band -= some;
  }
  alignas(64) float sums[kBandRows * kPairLanes];
  const int64_t first = pair * kPairLanes, n = std::min(kPairLanes, rank - first);
  for (int64_t p = 0; p < change.parts(); ++p) {
    const Matrix& a = change.a[size_t(p)];
    rows_.kernels.linear(a, rows_of(part_of_inputs(x, p), row, count), 2 * pair, std::min(2 * pair + 2, a.tiles()), sums, kPairLanes, false);
    for (int64_t r = 0; r < count; ++r) {
      float* const projection = rows_.projections.data() + (row + r) * stride_ + one.column + first;
      const float* const part = sums + r * kPairLanes;
      if (p == 0)
        std::copy_n(part, n, projection);
      else
        for (int64_t i = 0; i < n; ++i) projection[i] += part[i];
    }
  }
  for (int64_t r = row; r < row + count; ++r)
    finish(one, r, first, first + n, rows_.projections.data() + r * stride_ + one.column);
}

// Scales columns [first, end) of a row's projection, and fills the columns beyond the rank with zeros.
void Projections::finish(const AdaptedMatrix& one, int64_t row, int64_t first, int64_t end, float* projection) const {
  const float scale = rows_.adapter_scales[size_t(row)] * one.change->scale;
  for (int64_t i = first; i < end; ++i) projection[i] *= scale;
  if (end == one.change->rank) std::fill(projection + end, projection + one.change->columns(), 0.0f);
}

void Projections::add_change(const Matrix& matrix, int64_t begin, int64_t end, float* out, int64_t stride) {
  if (few() && !summed_) sum_parts();
  for (const AdaptedMatrix& one : own_.adapted) {
    if (one.matrix != &matrix) continue;
    Rows x;
    x.values = projections().data() + one.column;
    x.stride = stride_;
    x.blocks = one.change->columns() / kGroup;
    x.total = rows_.count;
    for (const auto& [first, count] : one.rows->runs)
      rows_.kernels.linear(one.change->b, rows_of(x, first, count), begin, end, out + first * stride, stride, true);
  }
}

}  // namespace ipex_lookahead
