// Images: the bytes of a cache outside of it, for files. They have no padding and no header: sizes follow from the shapes, the
// length and the numbers in the image. A reader checks every size, since an image may be damaged.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>

namespace ipex_lookahead {

struct Image {
  std::unique_ptr<uint8_t[]> bytes;
  int64_t size = 0;
};

// Runs twice: without memory, to measure the image, and with it.
class ImageWriter {
 public:
  // Returns the image that `write(writer)` writes.
  template <typename Write>
  static Image image(const Write& write) {
    ImageWriter measure(nullptr);
    write(measure);
    Image image{std::unique_ptr<uint8_t[]>(new uint8_t[size_t(measure.size_)]), measure.size_};
    ImageWriter writer(image.bytes.get());
    write(writer);
    return image;
  }

  // Adds `bytes` bytes, which `fill(address)` writes.
  template <typename Fill>
  void add(int64_t bytes, const Fill& fill) {
    if (out_ != nullptr && bytes > 0) fill(out_ + size_);
    size_ += bytes;
  }
  void add(const void* data, int64_t bytes) {
    add(bytes, [&](uint8_t* out) { std::memcpy(out, data, size_t(bytes)); });
  }
  void add_number(int64_t number) { add(&number, sizeof(number)); }

 private:
  explicit ImageWriter(uint8_t* out) : out_(out) {}

  uint8_t* out_;
  int64_t size_ = 0;
};

// Methods throw std::invalid_argument for an image that ends too early or has an invalid number.
class ImageReader {
 public:
  ImageReader(const uint8_t* data, int64_t size) : at_(data), left_(size) {}

  int64_t left() const { return left_; }
  // Returns the address of the next `count` items of `bytes` bytes.
  const uint8_t* take(int64_t count, int64_t bytes) {
    check(count, bytes);
    const uint8_t* const found = at_;
    at_ += count * bytes;
    left_ -= count * bytes;
    return found;
  }
  // Checks that `count` items of `bytes` bytes follow, before there is memory for them.
  void check(int64_t count, int64_t bytes) const {
    if (bytes > 0 && count > left_ / bytes)
      throw std::invalid_argument("the image ends too early: " + std::to_string(left_) + " bytes are left for " +
                                  std::to_string(count) + " items of " + std::to_string(bytes) + " bytes");
  }
  template <typename T>
  void copy(T* to, int64_t count) {
    const uint8_t* const from = take(count, sizeof(T));
    if (count > 0) std::memcpy(to, from, size_t(count) * sizeof(T));
  }
  int64_t number(int64_t least, int64_t most, const char* what) {
    int64_t number = 0;
    copy(&number, 1);
    if (number < least || number > most)
      throw std::invalid_argument("the image's " + std::string(what) + " is " + std::to_string(number) +
                                  "; it must be from " + std::to_string(least) + " to " + std::to_string(most));
    return number;
  }
  void finish() const {
    if (left_ != 0) throw std::invalid_argument("the image has " + std::to_string(left_) + " bytes too many");
  }

 private:
  const uint8_t* at_;
  int64_t left_;
};

}  // namespace ipex_lookahead
