# make demo   text from a real model, twice, with and without lookahead     make test   set-up, lint, types, tests
# make bench  README's table for this machine                                make clean  remove what was built
# make test-programs  of these the tests that start other programs: commands, servers, examples, the core's C++ tests
# make test-ipex-llm  our loop on the real ipex-llm, in an environment of its own (5 GB, kept in the cache folder)
# make test-opencl  the OpenCL engine on Intel's OpenCL runtime for CPUs, next to .venv (0.8 GB, kept in the cache folder)
# make test-opencl-offline  its kernels built by Intel's compiler for its GPUs, from Debian unstable (0.3 GB, kept in the cache folder)
# make test-browser  the server's page in Chromium (apt install chromium), driven by Playwright, next to .venv (0.2 GB)
# make test-clients  the server with clients (openai, anthropic, langchain ...), Ray and 16 coding agents of npm and PyPI (7 GB, kept)
# make test-peers  the tests that compare with llama.cpp (llama-cpp-python is built once, kept in the cache folder)
# make gates-opencl  all cases of the sampled tests of the OpenCL engine: families, formats, caches, both spellings (two hours)
# make gates  all cases of the tests that make test samples, and its attacks at full length (an hour)
# make soak  random requests to our own servers for 20 minutes (SECONDS=60): no lost or mixed answer, equal shares, level memory and disk
# make gates-coverage  how much of each reader of files those attacks run
# make docs  a site of README and docs in build/site, its links checked
# make wheel  wheels and an sdist in dist, each tried in a bare environment
# make sanitize  the core under Address-, UndefinedBehavior- and ThreadSanitizer
# Each does everything from a bare clone: .venv, torch's CPU build, the native core. PYTHON=... names another Python.

PYTHON ?= python3
PY := .venv/bin/python
# What README's commands need in addition to the package: pictures and the server.
USED := --with bench --with serve
# Tests of a file, or of a model type, run in one process: fixtures and models are made once.
SHARED_OUT := -n auto --maxprocesses 4 --dist loadgroup
# Bytecode is written, also where the environment disables it: else each test process compiles 1,000 files again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test quick test-programs test-peers test-ipex-llm test-opencl test-opencl-offline test-browser test-clients bench docs wheel gates gates-opencl gates-coverage soak sanitize lint types setup clean
.DEFAULT_GOAL := demo

define setup
	@command -v $(PYTHON) >/dev/null || { echo "error: no '$(PYTHON)' was found" >&2; \
	  echo "hint: install Python 3.10 or newer, or name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) scripts/setup.py $(1)
endef

setup:
	$(call setup,$(USED))

demo:
	$(call setup,$(USED))
	@$(PY) examples/lookahead.py

test:
	$(call setup,--with test)
	@$(PY) -m ipex_lookahead.cli.main info default >/dev/null
	@$(MAKE) --no-print-directory -j 2 lint types quick
	@$(if $(PYTEST),true,$(MAKE) --no-print-directory test-programs)

# After lint, next to types: mypy takes a minute of one core.
quick:
	@$(PY) -m pytest $(SHARED_OUT) -m "not programs" $(PYTEST)

test-programs:
	$(call setup,--with test)
	@$(PY) -m ipex_lookahead.cli.main info default >/dev/null
	@$(PY) -m pytest $(SHARED_OUT) -m programs $(PYTEST)

test-peers:
	$(call setup,--with test)
	@$(PYTHON) scripts/test_peers.py $(PYTEST)

test-ipex-llm:
	@command -v $(PYTHON) >/dev/null || { echo "error: no '$(PYTHON)' was found" >&2; exit 1; }
	@$(PYTHON) scripts/test_ipex_llm.py $(PYTEST)

test-opencl:
	$(call setup,--with test)
	@$(PYTHON) scripts/test_opencl.py $(PYTEST)

gates-opencl:
	$(call setup,--with test)
	@IPEX_LOOKAHEAD_GATES=large $(PYTHON) scripts/test_opencl.py tests/engines/opencl -m rotating $(PYTEST)

test-opencl-offline:
	$(call setup,--with test)
	@$(PYTHON) scripts/test_opencl.py --offline

test-browser:
	$(call setup,--with test)
	@$(PYTHON) scripts/test_browser.py $(PYTEST)

test-clients:
	$(call setup,--with test)
	@$(PYTHON) scripts/test_clients.py $(PYTEST)

bench:
	$(call setup,$(USED))
	@$(PY) scripts/results.py --here

docs:
	$(call setup,--with docs)
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build
	@echo "open build/site/index.html, or, for its search: $(PY) -m http.server -d build/site"

wheel:
	@command -v $(PYTHON) >/dev/null || { echo "error: no '$(PYTHON)' was found" >&2; exit 1; }
	@$(PYTHON) scripts/wheels.py

gates:
	$(call setup,--with test)
	@IPEX_LOOKAHEAD_GATES=large $(PY) -m pytest $(SHARED_OUT) -rP --timeout 3600 \
	  tests/gates tests/engines/native/test_fork.py $(PYTEST)
	@IPEX_LOOKAHEAD_GATES=large $(PY) -m pytest $(SHARED_OUT) --ignore tests/gates -m rotating $(PYTEST)

gates-coverage:
	$(call setup,--with test)
	@$(PY) scripts/gates_coverage.py

soak:
	$(call setup,--with test)
	@$(PY) scripts/soak.py $(or $(SECONDS),1200) $(MODEL)

sanitize:
	$(call setup,--with test)
	@scripts/sanitize.sh

lint:
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) scripts/check_style.py

types:
	@$(PY) -m mypy

clean:
	rm -rf build .venv .venv.old .mypy_cache .ruff_cache .pytest_cache .hypothesis
