# Start with `make demo` or `make test`. Every target sets up .venv first.
PYTHON ?= python3
BIN := .venv/bin
# Idle OpenMP threads sleep instead of spinning: on few cores spinning slows everything else down.
export OMP_WAIT_POLICY := PASSIVE

.PHONY: help demo test lint types format bench model pictures chromium clean

help:
	@echo "make demo      segment three photos; train a unary and a message model on synthetic scenes and compare them"
	@echo "make test      every check: ruff, mypy, pytest with doctests"
	@echo "make lint      ruff only"
	@echo "make types     mypy only"
	@echo "make format    ruff format and safe fixes"
	@echo "make bench     all benchmarks (takes hours; keep the machine idle)"
	@echo "make model     train the bundled model: VOC=DIR with PASCAL VOC 2012 (takes hours, can be interrupted)"
	@echo "make pictures  the screenshots of docs/explorer.md, with the models of make demo"
	@echo "make chromium  install chromium for the page's tests (as root; otherwise says how)"
	@echo "make clean     remove the environment and caches"

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
	for script in $$(grep -l __main__ benchmarks/*.py); do echo "== $$script"; $(BIN)/python $$script || exit 1; done

model: .venv/installed
	test -n "$(VOC)" || { echo "give the folder that holds VOC2012: make model VOC=DIR"; exit 2; }
	$(BIN)/python recipes/model.py "$(VOC)"

pictures: .venv/installed chromium
	test -d demo/messages/best || $(MAKE) demo
	EXPLORER_PICTURES=demo $(BIN)/python -m pytest tests/explorer/page/test_looks.py

# The page's tests run in chromium and are skipped without it. Only root installs it unasked, by Debian's apt-get.
chromium:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
	|| { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq chromium; } \
	|| echo "No chromium: the tests of the explorer's page are skipped. To run them: sudo apt-get install chromium"

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build src/*.egg-info
