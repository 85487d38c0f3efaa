#include "model/candidates.h"

namespace ipex_lookahead {

void Candidates::reserve(int64_t rows) {
  if (!any()) return;
  ensure(scores_, rows * stride_);
  ensure(best_, rows * used());
  ensure(chosen_, rows * used());
  ensure(finite_, rows);
}

void Candidates::choose_row(const KernelTable& kernels, int64_t row) {
  int32_t* const chosen = chosen_.data() + row * used();
  const int found = kernels.top_k(scores_.data() + row * stride_, shape_.centroids, 0, shape_.used, best_.data() + row * used(), chosen);
  finite_[size_t(row)] = found == shape_.used;
  if (finite_[size_t(row)]) std::sort(chosen, chosen + used());
}

}  // namespace ipex_lookahead
