// A lock that fails instead of waiting, for objects that other threads can reach while a step runs without the GIL.
#pragma once

#include <atomic>
#include <string>

#include "errors.h"

namespace ipex_lookahead {

// Copies start unclaimed.
class Claimable {
 public:
  Claimable() = default;
  Claimable(const Claimable&) {}
  Claimable& operator=(const Claimable&) = delete;

  bool try_claim() { return !taken_.exchange(true, std::memory_order_acquire); }
  void release() { taken_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> taken_{false};
};

// Throws BusyError if another thread has claimed the object.
class Claim {
 public:
  Claim(Claimable& thing, const char* deed) : thing_(thing) {
    if (!thing_.try_claim())
      throw BusyError(std::string(deed) + ": the cache is in use by another thread");
  }
  ~Claim() { thing_.release(); }
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

 private:
  Claimable& thing_;
};

}  // namespace ipex_lookahead
