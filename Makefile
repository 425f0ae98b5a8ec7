# Relative paths throughout: Make cannot cope with spaces in absolute ones.
PYTHON ?= $(shell python3.11 -c '' 2>/dev/null && echo python3.11 || echo python3)
VENV := .venv/bin/python
INSTALLED := .venv/installed

.DEFAULT_GOAL := help
.PHONY: help run test lint types format clean clean-data

help:  ## Show this list.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

run: $(INSTALLED)  ## Run everything here until Ctrl-C; another port: make run PORT=8001.
	@$(VENV) -m config.run

test: $(INSTALLED)  ## Run the tests; some of them: make test ARGS="-k duplicate".
	@if [ -d tests/browser ] && ! { command -v chromium && command -v chromedriver; } >/dev/null; then \
		echo '*** No chromium and chromedriver: THE BROWSER TESTS (tests/browser) ARE LEFT OUT. ***'; \
	fi
	@$(VENV) -m pytest $(ARGS)

lint: $(INSTALLED)  ## Style, formatting, and which package may import which.
	@$(VENV) -m ruff check .
	@$(VENV) -m ruff format --check .
	@.venv/bin/lint-imports

# The settings are imported by the type checker's Django plugin, but nothing is started.
types: export DEBUG := 1
types: $(INSTALLED)  ## Check the types.
	@$(VENV) -m mypy .

format: $(INSTALLED)  ## Mend what the linter can mend.
	@$(VENV) -m ruff check --fix .
	@$(VENV) -m ruff format .

clean:  ## Remove the venv and caches; the local database stays.
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis staticfiles
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

clean-data: $(INSTALLED)  ## Stop the embedded servers and delete the local database.
	@$(VENV) -c 'import pathlib; from config import embedded; embedded.stop(pathlib.Path(".data"))'
	rm -rf .data

# The stamp is written last, so an interrupted install is done again, from an empty venv.
$(INSTALLED): requirements.txt requirements-dev.txt requirements-kafka.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || \
		{ echo 'Tollgate needs Python 3.11: make PYTHON=/path/to/python3.11'; exit 1; }
	@echo 'Installing into .venv (a minute or two the first time) ...'
	@test -f $@ || $(PYTHON) -m venv --clear .venv
	@$(VENV) -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@touch $@
