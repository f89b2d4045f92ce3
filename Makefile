# make demo: environment, data, a trained model, its report.  make test: environment, every test.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint types docs bench bench-peers package-check lock clean

demo: $(STAMP)
	$(BIN)/fedpdm run demo

test: $(STAMP)
	sh scripts/install_browser.sh
	$(BIN)/python -m pytest -n 2 --dist loadfile

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/basedpyright

# The documentation as a site, in build/site; a warning is an error.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# How fast a round is, against a Numba program and the peers that are installed; then many clients and large models.
bench: $(STAMP)
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/scale.py

# Other simulators, each in an environment of its own under .venv-peers.
bench-peers:
	sh scripts/install_peers.sh "$(PYTHON)"

# Build in one empty environment, install the wheel in another, train from there.
package-check:
	sh scripts/check_package.sh "$(PYTHON)"

$(VENV)/.docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	touch $(VENV)/.docs

$(STAMP): pyproject.toml constraints.txt scripts/make_environment.sh
	sh scripts/make_environment.sh "$(PYTHON)" "$(VENV)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(STAMP)

# Take the versions of the present environment as the tested ones.
lock: $(STAMP)
	$(BIN)/python -m pip freeze --exclude-editable | grep -v '^fedpdm' > constraints.txt

clean:
	rm -rf $(VENV) .venv-peers build dist .pytest_cache .ruff_cache .hypothesis
