#!/bin/sh
# The native core under AddressSanitizer and UndefinedBehaviorSanitizer, and its threads under ThreadSanitizer.
# Called by `make sanitize` after the set-up; builds in build/asan and build/tsan and leaves the package alone.
set -eu
cd "$(dirname "$0")/.."
python=.venv/bin/python
real=$($python -c 'import os, sys; print(os.path.realpath(sys.executable))')

echo "== ThreadSanitizer: the thread pool; caches and weights that several threads are at"
mkdir -p build/tsan
tsan="c++ -std=c++17 -O1 -g -w -fsanitize=thread -pthread -Icsrc"
$tsan tests/csrc/thread_pool_test.cc csrc/runtime/thread_pool.cc -o build/tsan/pool
$tsan tests/csrc/cache_in_use_test.cc tests/csrc/dispatch_scalar.cc csrc/model/*.cc csrc/model/states/*.cc csrc/sampling.cc csrc/weights/packing.cc \
  csrc/runtime/thread_pool.cc csrc/kernels/scalar/kernels.cc -o build/tsan/cache
# Where addresses are randomized too widely for the sanitizer's shadow, setarch -R turns that off.
runner=""; command -v setarch >/dev/null && runner="setarch $(uname -m) -R"
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
$runner build/tsan/pool without-fork
$runner build/tsan/cache 2000

echo "== AddressSanitizer and UndefinedBehaviorSanitizer: the native tests"
# -O1 for the kernels too (CORE_FLAGS come after the build's own -O3), and lines without variables: minutes of compiling less.
flags="-O1 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined,float-divide-by-zero,float-cast-overflow"
flags="$flags -fno-sanitize-recover=all -D_GLIBCXX_ASSERTIONS"
$python -m cmake --version >/dev/null 2>&1 && cmake="$python -m cmake" || cmake=cmake
$cmake -S . -B build/asan -DCMAKE_BUILD_TYPE=Debug -DPython_EXECUTABLE="$PWD/$python" -DCMAKE_CXX_FLAGS="$flags" \
  "-DCORE_FLAGS=-O1;-fsanitize=bounds-strict" >/dev/null
$cmake --build build/asan -j "$(nproc)"
rm -rf build/asan/package
mkdir -p build/asan/package
cp -r ipex_lookahead build/asan/package/
rm -f build/asan/package/ipex_lookahead/_native*.so
cp build/asan/_native*.so build/asan/package/ipex_lookahead/
ln -sfn "$PWD/tests" "$PWD/configs" build/asan/package/
preload="$(c++ -print-file-name=libasan.so):$(c++ -print-file-name=libubsan.so)"
cd build/asan/package
# No leak detection: the interpreter leaks a little, and numpy allocates too much. The quarantine is small, because the gates
# limit memory.
export LD_PRELOAD="$preload"
export PYTHONPATH="$PWD:$(LD_PRELOAD= $OLDPWD/$python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
export ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=1:allocator_may_return_null=1:abort_on_error=1:quarantine_size_mb=32
export UBSAN_OPTIONS=print_stacktrace=1
tests="tests/engines/native tests/formats tests/decoding/test_sampling.py tests/drafting"
tests="$tests tests/engines/torch/test_low_bit_linear.py tests/engines/torch/test_replace_linears.py tests/gates"
"$real" -m pytest -q -p no:cacheprovider --durations 8 --timeout 1800 ${*:-$tests}
