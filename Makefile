# Two commands for newcomers: `make demo` and `make test`. Both set up .venv by themselves.
PYTHON ?= python3
BIN := .venv/bin
# Idle OpenMP threads sleep instead of spinning: on few cores spinning slows everything else down.
export OMP_WAIT_POLICY := PASSIVE
AS_ROOT := $(if $(filter-out 0,$(shell id -u)),sudo)

.PHONY: help demo test lint types format bench pictures chromium clean

help:
	@echo "make demo     segment two photographs; train a unary and a message model on synthetic scenes and compare them"
	@echo "make test     every check: ruff, mypy, pytest with doctests"
	@echo "make bench    the benchmarks (several minutes; keep the machine idle)"
	@echo "make pictures the screenshots of docs/explorer.md, with the models of make demo"
	@echo "make format   ruff format and safe fixes"
	@echo "make clean    remove the environment and caches"

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

demo: .venv/installed
	$(BIN)/messagenet demo --out demo

# Two processes, each with one thread, take half the time of one with two.
test: lint types chromium
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/installed
	$(BIN)/mypy

format: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/installed
	for name in aggregate head_cost context_gain; do echo "== $$name"; $(BIN)/python benchmarks/$$name.py || exit 1; done

pictures: .venv/installed chromium
	test -d demo/messages/best || $(MAKE) demo
	EXPLORER_PICTURES=demo $(BIN)/python -m pytest tests/explorer/page/test_looks.py

# The page is tested in Debian's chromium; where it cannot be installed, those tests are skipped.
chromium:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
	|| { $(AS_ROOT) apt-get update -qq && $(AS_ROOT) apt-get install -y -qq chromium; } \
	|| echo "chromium could not be installed: the tests of the explorer's page will be skipped"

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build src/*.egg-info
