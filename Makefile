# make demo: environment, data, a trained model.  make test: environment, every test.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint types lock clean

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

$(STAMP): pyproject.toml constraints.txt scripts/make_environment.sh
	sh scripts/make_environment.sh "$(PYTHON)" "$(VENV)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(STAMP)

# Take the versions of the present environment as the tested ones.
lock: $(STAMP)
	$(BIN)/python -m pip freeze --exclude-editable | grep -v '^fedpdm' > constraints.txt

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
