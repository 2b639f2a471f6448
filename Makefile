# Every target sets the project up first (.ci/setup): Python environment and Java, at once when nothing changed.
export PYTHON
# Downloads trust the system's certificates, as .ci/setup explains. Without any, uv has its own.
CERTIFICATES = $(wildcard /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/ca-bundle.pem /etc/ssl/cert.pem)
ifneq ($(CERTIFICATES),)
export UV_SYSTEM_CERTS ?= 1
export NODE_USE_SYSTEM_CA ?= 1
endif
# What Python has compiled is kept, wherever an environment says that it should not be: of a host's start it is the larger part.
export PYTHONPYCACHEPREFIX = $(CURDIR)/build/pycache
unexport PYTHONDONTWRITEBYTECODE
PYTEST = .venv/bin/pytest
COMMA = ,
# A tier of the tests, beside LOAD busy processes (docs/maintainers.md lists the tiers).
TIER = .venv/bin/python tests/tier.py $(1) $(if $(LOAD),--load $(LOAD))
# Spark's classes as Java likes them: a third off every start of a test's Spark. Tests do without it as well.
ARCHIVE = build/spark.jsa
JAVA = -XX:TieredStopAtLevel=1 -Xshare:auto -Xlog:disable -XX:SharedArchiveFile=$(abspath $(ARCHIVE))

.DEFAULT_GOAL = help
.PHONY: help demo test spark examples connectors contracts timing lab everything check sim mutants scenarios chaos bench repetition memory unit thorough fuzz
.PHONY: lint types arrows format setup matrix bare docs scale cluster
.PHONY: interop kafka pulsar letters node browser image pods start dist audit release tagged site versions poison stalls failover outage clean

# Targets with `##`. docs/maintainers.md lists the others.
help:  ## this list; docs/maintainers.md has more
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

demo: setup  ## the bank, end to end: files -> log -> Spark -> PostgreSQL, balances checked (DEMO='--json' for options)
	@.venv/bin/leasehold demo $(DEMO)

test: setup  ## what shows that the product works here: unit tests, and real hosts, Spark, PostgreSQL and a browser (LOAD=4: beside 4 busy processes)
	-@$(MAKE) --no-print-directory -k -j 2 $(ARCHIVE) browser
	@$(call TIER,test)

spark: setup $(ARCHIVE)  # Spark in the host, in depth: starts, dead JVMs, ranges, plans that are kept, dead letters
	@$(call TIER,spark)

examples: setup $(ARCHIVE)  # the examples of the pages, run as they are written
	@$(call TIER,examples)

connectors: setup node $(ARCHIVE)  ## all other connectors: Cosmos DB, Blob Storage, Event Hubs, Kafka, HTTP, NATS, Pulsar
	@$(call TIER,connectors)

kafka: setup  # a real Kafka broker at 127.0.0.1, until Ctrl-C (PORT=9092); needs Maven once
	@PYTHONPATH=tests .venv/bin/python -m lab.servers.kafka $(if $(PORT),--port $(PORT))

pulsar: setup  # a real Pulsar broker at 127.0.0.1, until Ctrl-C (PORT=6650); needs Maven once
	@PYTHONPATH=tests .venv/bin/python -m lab.servers.pulsar $(if $(PORT),--port $(PORT))

contracts: setup node
	@$(call TIER,contracts)

timing: setup node browser $(ARCHIVE)  ## everything that measures real time or memory; alone, on a quiet machine
	@$(call TIER,timing)

lab: setup node $(ARCHIVE)  # a slice of each program of the lab: simulation, mutants, scenarios, repetition, letters, chaos
	@$(call TIER,lab)

everything: setup  ## every tier and program but image, interop and the hours-long ones, and one table (ONLY="test timing")
	@.venv/bin/python tests/everything.py $(ONLY)

check: lint types arrows  ## lint, format, types and import arrows

# The first build of KEDA takes long, so it is niced and names what it has compiled. Go and Maven keep what they have built.
interop: setup node  # KEDA's scalers, the processors of Go and Java, Spark's readers of Delta and Kafka and Pulsar's Java client beside hosts and sinks; needs Go and Maven, and skips what lacks a tool
	@if command -v go > /dev/null; then cd tests/interop/go && nice -n 19 go build -v -o $(CURDIR)/build/interop/go .; fi
	@nice -n 19 $(call TIER,interop)

bench: setup  ## beside Structured Streaming, DuckDB, Polars, the SDK of Event Hubs and .NET's leases, and four platforms: a table, docs/performance.md (ONLY=hub)
	@.ci/setup bench
	.venv/bin/python tests/lab/bench/bench.py $(if $(ONLY),--only "$(ONLY)")

failover: setup  # a host of three is killed 30 times: how long its leases wait for new owners, with default settings (KILLS=5)
	@PYTHONPATH=tests .venv/bin/python -m lab.scenarios.failover $(if $(KILLS),--kills $(KILLS))

outage: setup  # hosts with their leases in PostgreSQL: how soon they hand over, and 30 s without the database: no lease moves, work resumes (EVENTS=1200 a second)
	@PYTHONPATH=tests .venv/bin/python -m lab.scenarios.outage $(if $(EVENTS),--events-per-s $(EVENTS))

stalls: setup  # how long the event loop of a real host stands still at most: Spark's start, 1 GB in one batch, garbage collection
	.venv/bin/python tests/lab/bench/stalls.py

poison: setup  # 1,000 events that cannot be processed among 1,000,000: exactly they are dead letters, and what that costs (POISON='--events 100000')
	.venv/bin/python tests/lab/bench/poison.py $(POISON)

unit: setup  ## tests without Spark, PostgreSQL or processes: a minute or two
	@$(call TIER,unit)

thorough: setup  # the unit tests once more, with fifty times as many examples for every property: minutes
	@$(call TIER,unit) --hypothesis-profile=thorough

matrix: setup  # the unit tests on every Python that is found, 3.11 or newer, and a table (PYTHONS="/path/a /path/b" for others)
	@$(call TIER,matrix) --command .venv/bin/python .ci/matrix

fuzz: setup  # the REST API asked at random by schemathesis, for minutes (EXAMPLES=300 a route, token and kind)
	FUZZ_EXAMPLES=$(or $(EXAMPLES),300) $(PYTEST) -p no:xdist --timeout 3600 tests/unit/service/api/test_app_openapi.py

memory: setup  # what a host holds while it drains 1,000,000 events, with few and many partitions
	MEMORY_IN_FULL=1 $(PYTEST) -s -p no:xdist tests/timing/test_memory.py

sim: setup  ## whole groups on virtual time (SEEDS=500 FIRST=1 SIZE=small|tight|large|hinted), or one seed again (SEED=7)
	@PYTHONPATH=tests .venv/bin/python -m lab.simulation.seeds --size $(or $(SIZE),small) \
		$(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),500) --first $(or $(FIRST),1))

model: setup  # every course of events of a small model of how hosts show that they live; its unsafe variants have to fail
	@PYTHONPATH=tests .venv/bin/python -m lab.model

mutants: setup  ## planted faults, each caught by the simulation (MUTANT=word for some)
	@PYTHONPATH=tests .venv/bin/python -m lab.simulation.mutants $(if $(MUTANT),--only "$(MUTANT)")

scenarios: setup $(ARCHIVE) $(if $(filter eventhubs blobs delta-blobs delta-blobs-merged,$(FEED) $(SINK)),node)  ## the bank, killed, frozen and moved at every crash point of every role (ONLY=word, FEED=eventhubs|nats|kafka|pulsar, LEASES=postgres, PLAIN=1 without Spark); a sink alone: SINK=files|blobs|delta|delta-blobs|delta-merged|delta-blobs-merged|http|cosmos; executors that read: RANGES=files|delta|postgres
	@PYTHONPATH=tests .venv/bin/python -m $(if $(SINK),lab.scenarios.sinks --sink $(SINK),$(if $(RANGES),lab.scenarios.ranges --sink $(RANGES),lab.scenarios.faults $(if $(FEED),--feed $(FEED)) $(if $(LEASES),--leases $(LEASES)) $(if $(PLAIN),--plain))) --only="$(ONLY)"

scale: setup  # whole groups on virtual time: what they cost and how soon they recover (ONLY=3x32; 100x20000 and 500x100000 by name alone)
	@PYTHONPATH=tests .venv/bin/python -m lab.scale --only "$(ONLY)"

repetition: setup  # every sink with hosts that are killed 20 times at random: how much each kill repeats (SINK=name, KILLS=20)
	@PYTHONPATH=tests .venv/bin/python -m lab.scenarios.repetition $(if $(SINK),--sink $(SINK)) $(if $(KILLS),--kills $(KILLS))

letters: setup  # hosts with dead letters under way, killed and frozen at crash points: letters and output are the feed (ONLY=word)
	@PYTHONPATH=tests .venv/bin/python -m lab.scenarios.letters --only="$(ONLY)"

chaos: setup $(ARCHIVE) $(if $(filter eventhubs,$(FEED)),node)  # the bank through minutes of faults at random, nothing lost or duplicated (MINUTES=10, SEED=7, FEED=eventhubs|kafka|pulsar, LEASES=postgres)
	@SPARK_SUBMIT_OPTS="$(JAVA)" PYTHONPATH=tests \
		.venv/bin/python -m lab.scenarios.chaos $(if $(FEED),--feed $(FEED)) $(if $(LEASES),--leases $(LEASES)) --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED))

CHAOS_ON = SPARK_SUBMIT_OPTS="$(JAVA)" PYTHONPATH=tests .venv/bin/python -m lab.scenarios.chaos --minutes 150 --faults $(or $(FAULTS),100) $(if $(FAULTS),,--kills 60)
cluster: setup $(ARCHIVE)  # transforms and hosts on a standalone cluster and a Connect server, then the bank on each while 60 of its parts are killed: hours (FAULTS=40)
	@.ci/setup spark-other
	@EXECUTORS_AWAY_S=$(or $(EXECUTORS_AWAY_S),180) $(call TIER,cluster)
	@$(call TIER,on-cluster)
	@$(call TIER,over-connect)
	@$(CHAOS_ON) --spark cluster
	@$(CHAOS_ON) --spark connect

lint: setup  # ruff: lint and format
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

types: setup  # mypy --strict, the simulation, the scenarios, the servers and the plugins included; in other tests, whether names exist
	.venv/bin/mypy
	.venv/bin/python tests/names.py

arrows: setup  # import-linter: who may import whom
	.venv/bin/lint-imports --no-cache

format: setup  ## write the format that `make lint` asks for
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

setup:  # .venv from uv.lock, and Java
	@.ci/setup

node: setup  # what tests of connectors have from npm: third-party clients and servers
	@.ci/setup node

browser: setup  # Chromium, and what the dashboard's tests load into it
	@.ci/setup browser

$(ARCHIVE): uv.lock tests/java_archive.py | setup
	-@.venv/bin/python tests/java_archive.py $@

docs: setup  ## the documentation site, strictly: build/site/index.html
	@.ci/setup docs
	NO_MKDOCS_2_WARNING=1 build/docs/bin/mkdocs build --strict

site: docs  # that site as a version of the branch gh-pages, and as `latest`; pushes nothing (VERSION=0.3.0)
	git fetch --quiet origin gh-pages:gh-pages || true
	PATH="$(CURDIR)/build/docs/bin:$$PATH" NO_MKDOCS_2_WARNING=1 mike deploy --update-aliases "$(VERSION)" latest
	PATH="$(CURDIR)/build/docs/bin:$$PATH" NO_MKDOCS_2_WARNING=1 mike set-default latest

image: setup node  ## the container image, built by buildah and tried, pods too: as root, half an hour; not part of `make test` (TARGET=thin)
	image/build $(if $(TARGET),leasehold-$(TARGET) $(TARGET))
	$(if $(TARGET),,image/build leasehold-emulators emulators)
	@mkdir -p build; rm -f build/image.txt
	@TEST_PATIENCE=4 $(call TIER,$(or $(TARGET),image))
	@cat build/image.txt

pods: setup node  # of that image: three share a bank, a fourth joins, one is killed, one is stopped as a rolling update does; and the first example of kubernetes.md
	@mkdir -p build; rm -f build/image.txt
	TEST_PATIENCE=4 $(PYTEST) -p no:xdist tests/image/test_pods.py tests/image/test_kubernetes.py
	@cat build/image.txt

start: setup  # of that image: how soon a host lives and is ready, beside a bare Spark session, by turns; into build/start.json (PAIRS=7)
	PYTHONPATH=tests .venv/bin/python tests/starts.py --pairs $(or $(PAIRS),7)

dist: setup  # dist/: a wheel and an sdist, tried in empty environments with the oldest and the newest PySpark and azure-eventhub
	@$(call TIER,dist) --command .venv/bin/python tests/dist.py

versions: setup  # docs/versions.md, from what the tests last ran with and what tests/runs.tsv keeps
	@.venv/bin/python tests/versions.py

audit: setup  # what is known against the packages of uv.lock, says PyPI or OSV; needs the network, not part of `make test` (ADVISORIES=osv)
	@.venv/bin/python tests/audit.py $(ADVISORIES)

bare:  # `make demo` and `make test` on a bare Debian in a chroot, as root and as a user: SUITE=bookworm|trixie (as root, needs debootstrap); RELEASE=1: what `make dist` built
	@$(if $(RELEASE),$(call TIER,"bare $(SUITE)$(COMMA) index") --command env BARE_STEPS=index) .ci/bare $(SUITE)

tagged: setup  # that a tag is the version in every place, and the addresses in pyproject.toml those of a repository (TAG=v0.3.0 SOURCE=https://...)
	@.venv/bin/python tests/release.py --tagged "$(TAG)" "$(SOURCE)"

release:  # sets the version everywhere, checks, commits and tags; pushes nothing (VERSION=0.3.0)
	@$(MAKE) --no-print-directory setup
	@.venv/bin/python tests/release.py "$(VERSION)"

clean:  # remove what was built, caches and .venv
	rm -rf .venv tests/node/node_modules tests/browser/node_modules build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache spark-warehouse
