# make demo: environment, data, a trained model, its report.  make test: environment, every test.  make quick: the fast tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test quick format lint types docs compatibility bench bench-peers package-check lock clean

demo: $(STAMP)
	$(BIN)/fedpdm run demo

# Tests wait for processes much of the time, so a third worker helps two cores; each takes up to 6 GB.
WORKERS ?= $(shell awk '/MemTotal/ {print ($$2 > 20000000) ? 3 : 2}' /proc/meminfo)
test: $(STAMP)
	sh scripts/install_browser.sh
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# Files that need neither processes nor long runs: about 130 seconds of CPU in all, so a good minute on two cores.
QUICK := tests/test_style.py tests/test_compatibility.py tests/test_participation.py tests/test_theory.py \
	tests/problem/test_losses.py tests/compression/test_sparsify.py tests/compression/test_values.py tests/compression/test_wire.py \
	tests/privacy/test_accounting.py tests/privacy/test_schema_release.py tests/data/test_partition.py tests/data/test_tables.py
quick: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile $(QUICK)

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/basedpyright

# The documentation as a site, in build/site; a warning is an error.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# A part of the fast tests on the newest Python that is here, and on the oldest and the newest JAX.
compatibility: $(STAMP)
	sh scripts/check_compatibility.sh

# The time of a round, against a Numba program and the peers that are installed; then many clients and large models.
bench: $(STAMP)
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/scale.py

# Other simulators, each in its own environment under .venv-peers.
bench-peers:
	sh scripts/install_peers.sh "$(PYTHON)"

# Build in one empty environment, install the wheel in another, train from there.
package-check:
	sh scripts/check_package.sh "$(PYTHON)"

$(VENV)/.docs: $(STAMP)
	$(PIP) -c constraints.txt --group docs
	touch $(VENV)/.docs

# Dependency groups need pip 25.1.
$(STAMP): pyproject.toml constraints.txt scripts/make_environment.sh
	sh scripts/make_environment.sh "$(PYTHON)" "$(VENV)"
	$(PIP) "pip>=25.1"
	$(PIP) -c constraints.txt -e ".[all]" --group dev
	touch $(STAMP)

# Take the versions of the present environment as the tested ones.
lock: $(STAMP)
	$(BIN)/python -m pip freeze --exclude-editable | grep -v '^fedpdm' > constraints.txt

clean:
	rm -rf $(VENV) .venv-peers .venv-compatibility build dist .pytest_cache .ruff_cache .hypothesis
