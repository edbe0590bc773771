# Targets for contributors; every change must pass `make check`. PYTHON names the interpreter.
PYTHON ?= python3
# Byte code is kept, whatever the environment says: pytest takes 13 s of CPU in each worker to rewrite all assertions.
export PYTHONDONTWRITEBYTECODE =

.PHONY: help install build check lint types fmt docs site fast test test-all sanitize fuzz bench clean lock

help:
	@sed -n 's/^\([a-z-]*\):.*## /\1: /p' Makefile

install: ## install in place, with the packages for development
	$(PYTHON) -m pip install -e '.[dev,clients]'

build: ## rebuild the extension after a change to nnr_codec/cabac_ext
	$(PYTHON) -m pip install -q --no-build-isolation --no-deps -e .

check: lint types fast ## lint, types and the fast tests

lint:
	$(PYTHON) -m ruff check
	$(PYTHON) -m ruff format --check

types:
	$(PYTHON) -m mypy
	$(PYTHON) -m mypy.stubtest --ignore-disjoint-bases --allowlist .ci/stubtest.allow \
		nnr_codec.cabac_ext.kernel nnr_codec.cabac_ext.quantizer nnr_codec.cabac_ext.bits \
		nnr_codec.cabac_ext.surgeon

fmt: ## format, and fix what ruff can fix
	$(PYTHON) -m ruff check --fix
	$(PYTHON) -m ruff format

docs: ## write the generated pages of docs
	$(PYTHON) -m tools.syntax_page > docs/reference/syntax.md
	$(PYTHON) -m tools.requirements_page > docs/reference/requirements.md
	$(PYTHON) -m tools.coverage > docs/reference/coverage.md
	$(PYTHON) -m tools.written_page > docs/reference/written.md
	$(PYTHON) -m nnr_codec.conformance.errata > docs/reference/errata.md

site: ## build the documentation site in build/site, offline and strict (extra docs)
	$(PYTHON) -m sphinx -q -W --keep-going -b html docs build/site

fast: ## the tests without the marks medium, slow and heavy
	$(PYTHON) -m pytest -q -m 'not slow and not medium and not heavy'

test: ## the tests without the marks slow and heavy
	$(PYTHON) -m pytest

test-all: ## the tests without the mark heavy; if NNR_PEER names a Python with NNCodec, also the tests against NNCodec
	$(PYTHON) -m pytest -m 'not heavy'

sanitize: ## build with GCC's sanitizers in build/sanitized, and run the tests that reach the extension
	PYTHON=$(PYTHON) .ci/sanitize

FUZZ_SECONDS ?= 600
fuzz: ## run the fuzzing targets for FUZZ_SECONDS in total; FUZZ selects some of them
	$(PYTHON) -m tests.fuzz.targets --seconds $(FUZZ_SECONDS) $(FUZZ)

bench: ## compare with NNCodec; NNR_PEER names the Python that has it
	$(PYTHON) -m benchmarks.compare --peer $(NNR_PEER)

clean: ## remove build outputs
	rm -rf build dist *.egg-info nnr_codec/*/*.so nnr_codec/cabac_ext/*.c nnr_codec/syntax/*.c

lock: ## write the lock files of continuous integration (requires uv)
	uv pip compile -q pyproject.toml requirements/ci.in --extra dev --extra clients --extra docs --universal \
		--python-version 3.12 --no-annotate --custom-compile-command 'make lock' -o requirements/ci.txt
	uv pip compile -q pyproject.toml --extra test --resolution lowest-direct \
		--python-version 3.11 --no-annotate --custom-compile-command 'make lock' -o requirements/oldest.txt
