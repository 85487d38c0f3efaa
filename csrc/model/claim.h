// One user at a time, and nobody waits: for what another thread may reach while a step runs without Python's lock.
#pragma once

#include <atomic>
#include <string>

#include "errors.h"

namespace ipex_lookahead {

// A copy is nobody's yet.
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

// Throws BusyError where another thread is at it.
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
