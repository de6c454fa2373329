# Run "make" to list the targets. Unless its description says otherwise, a target needs only Go and make, and works in a
# clean clone. If there is a C compiler, the unit tests of the library run with the race detector.

.DEFAULT_GOAL := help
.NOTPARALLEL:

include tools/project.mk

# The library, and the modules that are tested package by package. The library runs no control planes.
PLATFORM_MODULE := cmd/dynamic-controller
CLUSTER_MODULES := $(PLATFORM_MODULE) examples test
UNIT_MODULES := . $(CLUSTER_MODULES)

# $(call cluster_packages,MODULE) are the packages of a module that import test/cluster: their tests run control planes.
# They are tested without Go's test cache, which does not track the binaries that they start.
cluster_packages = $(shell cd $(1) && go list -f '{{.ImportPath}} {{join .Imports " "}} {{join .TestImports " "}} {{join .XTestImports " "}}' ./... \
	| awk '{ for (i = 1; i <= NF; i++) if ($$i == "$(MODULE)/test/cluster") { print $$1; next } }')
unit_packages = $(filter-out $(call cluster_packages,$(1)),$(shell cd $(1) && go list ./...))

# "make test" uses the race detector for the packages of the library, whose goroutines meet in their unit tests, except
# PLAIN_PACKAGES, which start none. "make test-long" also uses it for the platform, the examples and test. It makes tests
# up to ten times slower, and all packages that they import are compiled once more, which takes minutes for these.
ENGINE_PACKAGE := $(MODULE)/test/integration
PLAIN_PACKAGES := $(MODULE)/dynamiccontroller/replica/internal/plan
other_cluster_packages = $(filter-out $(ENGINE_PACKAGE),$(call cluster_packages,$(1)))

# The race detector needs cgo, which Go enables if it finds a C compiler.
RACE = $(if $(filter 1,$(shell go env CGO_ENABLED)),-race)
# In unit tests, it needs GOMAXPROCS=1: it crashes if timers of a synctest bubble fire in two threads at the same time
# (golang/go#78156). It compares what happens before what, so it also finds races then, but in fewer interleavings.
UNIT_RACE = $(if $(RACE),$(RACE) -cpu 1)
PRINT_RACE = $(if $(RACE),,@echo "running tests without the race detector: no C compiler found, or CGO_ENABLED=0")

# Only the race detector needs cgo. Linters, OTHER_MODULES and the programs that tests build are compiled without it,
# like the binary of test/controlplane. Otherwise, all of their packages would be compiled twice.
WITHOUT_CGO := CGO_ENABLED=0

# "make verify" includes go vet.
TEST_FLAGS := -vet=off

GOLANGCI_LINT = $(WITHOUT_CGO) go tool -modfile=$(CURDIR)/tools/go.mod golangci-lint

GOVULNCHECK = $(WITHOUT_CGO) go tool -modfile=$(CURDIR)/tools/go.mod govulncheck
# It would run shellcheck and pyflakes if they are installed.
ACTIONLINT = $(WITHOUT_CGO) go tool -modfile=$(CURDIR)/tools/actionlint/go.mod actionlint -shellcheck= -pyflakes=

# "go build" that reports its progress.
BUILD := $(CURDIR)/tools/build.sh

# All other modules.
CONTROLPLANE_MODULE := test/controlplane
# In test/kindnode, "make test" builds only the packages that do not depend on Kubernetes.
KINDNODE_MODULE := test/kindnode
BENCH_MODULE := test/bench
OTHER_MODULES := $(patsubst %/go.mod,%,$(filter-out $(CONTROLPLANE_MODULE)/go.mod $(KINDNODE_MODULE)/go.mod,$(wildcard test/*/go.mod examples/*/go.mod install/go.mod)))
# "make test-long" also lints all other modules, and tests test/bench. Their many dependencies take minutes to compile
# or to analyze.
TESTED_MODULES := $(filter-out $(BENCH_MODULE),$(OTHER_MODULES))
LINTED_MODULES = $(UNIT_MODULES) install
TEST_PARTS := $(words 1 2 3 4 $(TESTED_MODULES))
# The modules in test/versions have no packages. Each names a version of kube-apiserver, which "make test-versions" builds.
VERSION_MODULES := $(patsubst %/go.mod,%,$(wildcard test/versions/*/go.mod))
ALL_MODULES := $(UNIT_MODULES) tools tools/actionlint $(CONTROLPLANE_MODULE) $(KINDNODE_MODULE) $(OTHER_MODULES) $(VERSION_MODULES)

.PHONY: help
help: ## show this help
	@awk -F ':.*## ' '/^[a-z0-9.%-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  To use an existing cluster, set KUBECONFIG for demo, run and example-*, and TEST_KUBECONFIG for test-integration."
	@echo "  To use existing etcd and kube-apiserver binaries instead of building them, set KUBEBUILDER_ASSETS to their folder."

## Demonstrations

.PHONY: demo
demo: build $(if $(KUBECONFIG),,controlplane) ## run the scripted demonstration on a temporary control plane
	@cd examples && $(WITHOUT_CGO) OUTPUT=$(CURDIR)/bin/demo $(BUILD) ./demo
	@bin/demo

.PHONY: run
run: build $(if $(KUBECONFIG),,controlplane) ## set up the demonstration and keep it running until Ctrl-C
	@cd examples && $(WITHOUT_CGO) OUTPUT=$(CURDIR)/bin/demo $(BUILD) ./demo
	@bin/demo --stay

KIND_DEMO_LOG ?= bin/kind-demo.log

.PHONY: kind-demo
kind-demo: ## run the demonstration on a temporary kind cluster (requires docker; KEEP=1 keeps the cluster)
	@KIND_DEMO_LOG=$(KIND_DEMO_LOG) examples/kind/demo.sh

.PHONY: kind-picture
kind-picture: ## draw docs/kind-demo.svg from the log of the last kind-demo, or from KIND_DEMO_LOG=FILE
	@test -f $(KIND_DEMO_LOG) || { echo "make kind-picture: $(KIND_DEMO_LOG) does not exist: run make kind-demo first" >&2; exit 1; }
	@mkdir -p bin && go run -C examples ./kind/picture <$(KIND_DEMO_LOG) >bin/kind-demo.svg
	@mv bin/kind-demo.svg docs/kind-demo.svg

example-%: $(if $(KUBECONFIG),,controlplane) ## run an example on a temporary control plane, for example make example-hello
	@echo "building examples/$*"
	@cd examples/$* && $(WITHOUT_CGO) OUTPUT=$(CURDIR)/bin/examples/$* $(BUILD) .
	@cd examples && $(WITHOUT_CGO) OUTPUT=$(CURDIR)/bin/examples/show $(BUILD) ./internal/show
	@bin/examples/show $*

## Build

# These are printed by "dynamic-controller version". Without git, they are unknown.
VERSION = $(shell git describe --tags --always --dirty 2>/dev/null)
VERSION_LDFLAGS = -X main.version=$(VERSION) -X main.commit=$(shell git rev-parse HEAD 2>/dev/null)

.PHONY: build
build: ## build bin/dynamic-controller
	@echo "building bin/dynamic-controller"
	@cd $(PLATFORM_MODULE) && $(WITHOUT_CGO) OUTPUT=$(CURDIR)/bin/dynamic-controller $(BUILD) -ldflags '$(VERSION_LDFLAGS)' .

# REPOSITORY:TAG, to which "make image" pushes.
IMAGE =

.PHONY: image
image: ## build the image for amd64 and arm64 in bin/image, and push it to IMAGE=REPOSITORY:TAG if it is set
	@cd install && $(WITHOUT_CGO) go run ./image --version '$(VERSION)' --commit '$(shell git rev-parse HEAD 2>/dev/null)' \
		--date '$(or $(shell git log -1 --format=%cI 2>/dev/null),1970-01-01T00:00:00Z)' $(if $(IMAGE),--push '$(IMAGE)')

.PHONY: manifests
manifests: ## update the manifests for kustomize from the Helm chart
	cd install && $(WITHOUT_CGO) go test -count=1 -run TestManifests_AreRenderedFromTheChart . -update

.PHONY: builtin-schemas
builtin-schemas: controlplane ## update the schemas of built-in kinds that "dynamic-controller validate" uses without a cluster
	cd $(PLATFORM_MODULE) && $(WITHOUT_CGO) go test -count=1 -run TestBuiltinKinds . -update-builtin

# If KUBEBUILDER_ASSETS names a folder with etcd and kube-apiserver, as for envtest, only a launcher for these is built. It
# contains the controllers that tests need, because kube-controller-manager is usually not in the folder.
CONTROLPLANE := $(if $(KUBEBUILDER_ASSETS),bin/controlplane-launcher,bin/controlplane)
CONTROLPLANE_TAGS := $(if $(KUBEBUILDER_ASSETS),-tags external)

.PHONY: controlplane
controlplane: check-assets $(CONTROLPLANE) ## build bin/controlplane, with kube-apiserver and etcd (the first build takes minutes)

.PHONY: check-assets
check-assets:
ifneq ($(KUBEBUILDER_ASSETS),)
	@for program in etcd kube-apiserver; do test -x "$(KUBEBUILDER_ASSETS)/$$program" || { \
		echo "KUBEBUILDER_ASSETS=$(KUBEBUILDER_ASSETS) does not contain $$program: install it there, or unset the variable to build it" >&2; \
		exit 1; }; done
endif

# $(call KUBERNETES_LDFLAGS,v1.37.2) sets the version of a Kubernetes program.
VERSION_PACKAGE := k8s.io/component-base/version
KUBERNETES_LDFLAGS = -s -w -X $(VERSION_PACKAGE).gitVersion=$(1) -X $(VERSION_PACKAGE).gitMajor=1 \
	-X $(VERSION_PACKAGE).gitMinor=$(word 2,$(subst ., ,$(1))) -X $(VERSION_PACKAGE).gitTreeState=clean
CONTROLPLANE_FILES := $(filter-out %_test.go,$(wildcard $(CONTROLPLANE_MODULE)/*.go)) $(CONTROLPLANE_MODULE)/go.mod $(CONTROLPLANE_MODULE)/go.sum

bin/controlplane: $(CONTROLPLANE_FILES)
	@echo "building kube-apiserver and etcd from their Go modules: the first build takes a few minutes"
	@cd $(CONTROLPLANE_MODULE) && $(WITHOUT_CGO) OUTPUT=$(CURDIR)/$@ $(BUILD) -ldflags '$(call KUBERNETES_LDFLAGS,v1.37.2)' .
	@touch $@

bin/controlplane-launcher: $(CONTROLPLANE_FILES)
	@echo "building a launcher for etcd and kube-apiserver: the first build takes about a minute"
	@cd $(CONTROLPLANE_MODULE) && $(WITHOUT_CGO) OUTPUT=$(CURDIR)/$@ $(BUILD) -tags external -ldflags '-s -w' .
	@touch $@

bin/versions/%/kube-apiserver: test/versions/%/go.mod test/versions/%/go.sum
	@echo "building kube-apiserver $*: the first build takes a few minutes"
	@cd test/versions/$* && $(WITHOUT_CGO) OUTPUT=$(CURDIR)/$@ $(BUILD) -ldflags '$(call KUBERNETES_LDFLAGS,$*)' \
		k8s.io/kubernetes/cmd/kube-apiserver
	@touch $@

# All versions use the same etcd.
bin/versions/%/etcd: bin/versions/etcd
	@mkdir -p $(@D)
	@ln -f $< $@

bin/versions/etcd: $(CONTROLPLANE_MODULE)/go.mod $(CONTROLPLANE_MODULE)/go.sum
	@echo "building etcd"
	@cd $(CONTROLPLANE_MODULE) && $(WITHOUT_CGO) OUTPUT=$(CURDIR)/$@ $(BUILD) -ldflags '-s -w' go.etcd.io/etcd/server/v3
	@touch $@

KIND_IMAGE := dynamic-controller/kind-node:v1.37.1

.PHONY: kind-image
kind-image: ## build a kind node image without a registry (requires root, docker, debootstrap, gcc and pkg-config)
	@cd $(KINDNODE_MODULE) && go run . --tag $(KIND_IMAGE) --work $(CURDIR)/bin/kindnode

## Test

# The tests of the small modules. They run beside those of ENGINE_PACKAGE, which wait for half of their time.
define test_modules
set -e; \
echo "[3/$(TEST_PARTS)] $(CONTROLPLANE_MODULE)"; \
(cd $(CONTROLPLANE_MODULE) && $(WITHOUT_CGO) go test $(TEST_FLAGS) $(CONTROLPLANE_TAGS) ./... && \
	$(WITHOUT_CGO) go test $(TEST_FLAGS) -tags external -run External ./...); \
echo "[4/$(TEST_PARTS)] $(KINDNODE_MODULE)"; \
(cd $(KINDNODE_MODULE) && $(WITHOUT_CGO) go test $(TEST_FLAGS) . ./docker); \
n=4; for m in $(TESTED_MODULES); do \
	n=$$((n + 1)); echo "[$$n/$(TEST_PARTS)] $$m"; (cd $$m && $(WITHOUT_CGO) go test $(TEST_FLAGS) -count=1 -timeout 30m ./...); done
endef

.PHONY: test
test: controlplane ## run the tests; those of the library with the race detector if there is a C compiler
	$(PRINT_RACE)
	@echo "[1/$(TEST_PARTS)] packages that need no control plane"
	@go test $(TEST_FLAGS) $(UNIT_RACE) $(filter-out $(PLAIN_PACKAGES),$(call unit_packages,.))
	@$(WITHOUT_CGO) go test $(TEST_FLAGS) $(PLAIN_PACKAGES)
	@$(foreach m,$(CLUSTER_MODULES),cd $(CURDIR)/$(m) && $(WITHOUT_CGO) go test $(TEST_FLAGS) $(call unit_packages,$(m)) &&) :
	@echo "[2/$(TEST_PARTS)] packages that run control planes"
	@run() { (cd $$1 && shift && $(WITHOUT_CGO) go test $(TEST_FLAGS) -count=1 -p 1 -timeout 45m "$$@"); }; \
	run test $(ENGINE_PACKAGE) $(call other_cluster_packages,test) & engine=$$!; \
	run $(PLATFORM_MODULE) $(call cluster_packages,$(PLATFORM_MODULE)); platform=$$?; \
	run examples $(call cluster_packages,examples); examples=$$?; \
	($(test_modules)); modules=$$?; \
	wait $$engine && test $$platform = 0 && test $$examples = 0 && test $$modules = 0

# Go runs only the tests of packages that have changed, or import a changed one, and has the results of the others.
.PHONY: test-quick
test-quick: ## run the tests that need no control plane, of what has changed, with few random cases (takes up to two minutes)
	@$(foreach m,$(UNIT_MODULES),cd $(CURDIR)/$(m) && $(WITHOUT_CGO) go test $(TEST_FLAGS) -short $(call unit_packages,$(m)) &&) :
	@$(foreach m,$(CLUSTER_MODULES),cd $(CURDIR)/$(m) && $(WITHOUT_CGO) go vet $(call cluster_packages,$(m)) &&) :

.PHONY: test-unit
test-unit: ## run the tests that need no control plane
	$(foreach m,$(UNIT_MODULES),cd $(CURDIR)/$(m) && $(WITHOUT_CGO) go test $(call unit_packages,$(m)) &&) :

.PHONY: test-race
test-race: ## run the tests that need no control plane three times with the race detector
	$(foreach m,$(UNIT_MODULES),cd $(CURDIR)/$(m) && CGO_ENABLED=1 go test -race -cpu 1 -count=3 $(call unit_packages,$(m)) &&) :

.PHONY: test-long
test-long: controlplane test-race ## run what "make test" leaves out, every night and before a release (takes more than an hour)
	cd test && CGO_ENABLED=1 go test $(TEST_FLAGS) -race -count=1 -timeout 60m $(ENGINE_PACKAGE) \
		-every 1 -shutdowns 200 -namespaces 10000 -cycles 1000
	$(foreach m,$(CLUSTER_MODULES),cd $(CURDIR)/$(m) && \
		CGO_ENABLED=1 go test $(TEST_FLAGS) -race -count=1 -p 1 -timeout 60m $(call other_cluster_packages,$(m)) &&) :
	cd $(PLATFORM_MODULE) && $(WITHOUT_CGO) go test $(TEST_FLAGS) -count=1 -timeout 60m -run TestCrash . -crash-after-writes 3
	cd $(PLATFORM_MODULE) && $(WITHOUT_CGO) go test $(TEST_FLAGS) -count=1 -timeout 60m -run TestCompile \
		./internal/blueprint/onserver -every 1
	cd $(PLATFORM_MODULE) && $(WITHOUT_CGO) go test $(TEST_FLAGS) -tags long -count=1 -timeout 60m -run 'MemoryLimit|Upgrade' . \
		-hostile-for 2m -hostile-types all
	$(MAKE) lint LINTED_MODULES='$(filter-out install,$(OTHER_MODULES))'
	cd $(CONTROLPLANE_MODULE) && $(WITHOUT_CGO) go vet ./... && $(WITHOUT_CGO) go vet -tags external ./...
	cd $(BENCH_MODULE) && $(WITHOUT_CGO) go test $(TEST_FLAGS) -count=1 -timeout 30m ./...
	$(MAKE) test-e2e-rounds

.PHONY: test-integration
test-integration: controlplane ## run the tests that need a control plane
	$(PRINT_RACE)
	$(foreach m,$(CLUSTER_MODULES),cd $(CURDIR)/$(m) && \
		go test $(RACE) -count=1 -p 1 -timeout 45m $(call cluster_packages,$(m)) &&) :

.PHONY: test-e2e
test-e2e: controlplane ## run several replicas and inject each fault once (included in "make test")
	$(PRINT_RACE)
	cd test && go test $(RACE) -count=1 -v ./e2e

# The versions of Kubernetes for "make test-versions", which runs the tests of the promises, the demonstration and the
# examples on each.
VERSIONS := $(notdir $(VERSION_MODULES))

.PHONY: test-versions
test-versions: $(foreach v,$(VERSIONS),bin/versions/$(v)/kube-apiserver bin/versions/$(v)/etcd) bin/controlplane-launcher ## test on other versions of Kubernetes, or on VERSIONS (the first build takes minutes for each)
	@failed=; \
	test_in() { echo "[$$v] $$1"; (cd "$$1" && shift && go test $(TEST_FLAGS) -count=1 -p 1 -timeout 30m "$$@") || failed="$$failed $$v/$$1"; }; \
	export TEST_KUBECONFIG= $(WITHOUT_CGO); \
	for v in $(VERSIONS); do \
		export KUBEBUILDER_ASSETS=$(CURDIR)/bin/versions/$$v; \
		test_in test ./integration; \
		test_in examples ./demo ./internal/show; \
		test_in examples/controller-runtime ./...; \
		test_in test/docs -run TestExamples .; \
	done; \
	test -z "$$failed" || { echo "make test-versions: these tests failed:$$failed" >&2; exit 1; }

OLDEST := $(firstword $(sort $(notdir $(VERSION_MODULES))))

.PHONY: test-oldest
test-oldest: bin/versions/$(OLDEST)/kube-apiserver bin/versions/$(OLDEST)/etcd bin/controlplane-launcher ## run the demonstration, the tests of children and the examples on the oldest supported version
	@echo "testing on Kubernetes $(OLDEST)"
	@export KUBEBUILDER_ASSETS=$(CURDIR)/bin/versions/$(OLDEST) TEST_KUBECONFIG= $(WITHOUT_CGO); \
	(cd examples && go test $(TEST_FLAGS) -count=1 -timeout 10m ./demo) && \
	(cd test && go test $(TEST_FLAGS) -count=1 -timeout 20m -run TestHandlers ./integration) && \
	cd test/docs && go test $(TEST_FLAGS) -count=1 -timeout 10m -run TestExamples .

.PHONY: test-ui
test-ui: controlplane ## test the diagnostics page in headless Chromium (requires chromium; SCREENSHOTS=DIR writes pictures)
	cd $(PLATFORM_MODULE) && $(WITHOUT_CGO) go test $(TEST_FLAGS) -tags browser -count=1 -p 1 -run Browser ./internal/ui .

.PHONY: test-kind
test-kind: ## run the tests that need kubelets on a temporary kind cluster (requires docker)
	@examples/kind/with-cluster.sh "make test-kind" dynamic-controller-test go test -C test -tags kind -count=1 -v -timeout 20m ./kind

.PHONY: test-kind-smoke
test-kind-smoke: ## start and stop the platform on a temporary kind cluster with one node (requires docker)
	@KIND_CONFIG=examples/kind/single-node.yaml examples/kind/with-cluster.sh "make test-kind-smoke" dynamic-controller-smoke \
		go test -C test -tags kind -count=1 -v -timeout 5m -run TestDeletedLeaderReleasesTheLease ./kind

ROUNDS := 100
SEED := 0

.PHONY: test-e2e-rounds
test-e2e-rounds: controlplane ## run ROUNDS rounds of random faults and changes; SEED repeats an earlier run (100 rounds take about 35 minutes)
	$(PRINT_RACE)
	cd test && go test $(RACE) -count=1 -v -timeout 3h -run Rounds ./e2e -rounds $(ROUNDS) -seed $(SEED)

.PHONY: bench
bench: controlplane ## compare the engine with its alternatives (takes about 90 minutes)
	cd test/bench && go test -run '^$$' -bench . -timeout 3h .

.PHONY: bench-growth
bench-growth: controlplane ## measure how the costs grow, and save the output for bench-report (takes about half an hour)
	@mkdir -p test/bench/results
	@rm -f test/bench/results/growth.new
	@cd test/bench && for load in types rate objects; do \
		echo "measuring $$load on a new control plane"; \
		go test -run '^$$' -bench Growth/load=$$load -benchtime 1x -timeout 3h . >>results/growth.new || { cat results/growth.new; exit 1; }; \
	done
	@mv test/bench/results/growth.new test/bench/results/growth.txt

.PHONY: bench-sharding
bench-sharding: controlplane ## measure fleets of replicas with shards, and save the output for bench-report (takes about 12 minutes)
	@mkdir -p test/bench/results
	@cd test/bench && go test -run '^$$' -bench Sharding -benchtime 1x -timeout 1h -against 'one leader' . >results/sharding.new || \
		{ cat results/sharding.new; exit 1; }
	@mv test/bench/results/sharding.new test/bench/results/sharding.txt

.PHONY: bench-platform
bench-platform: controlplane ## compare the demo platform with kro, and save the output for bench-report (takes about 18 minutes)
	@mkdir -p test/bench/results
	@cd test/bench && go test -run '^$$' -bench Platform -benchtime 1x -timeout 3h -against kro . >results/platform.new || \
		{ cat results/platform.new; exit 1; }
	@mv test/bench/results/platform.new test/bench/results/platform.txt

.PHONY: bench-report
bench-report: ## update the charts and tables of the documentation from test/bench/results
	@cd test/bench && $(WITHOUT_CGO) go run ./report -root $(CURDIR)

## Release

# The version of a release is VERSION, which has no default here: that of "make build" contains the commit.
RELEASE_VERSION = $(if $(filter file,$(origin VERSION)),,$(VERSION))
RELEASE_DIRECTORY = $(CURDIR)/bin/release/$(RELEASE_VERSION)
# A file with a private key to sign with. Without it, the release is not signed.
RELEASE_KEY =
# The URI of the builder in the provenance, and the platforms of the binaries. The program has defaults.
RELEASE_BUILDER =
RELEASE_PLATFORMS =
RELEASE_PROGRAM = cd install && $(WITHOUT_CGO) go run ./release

.PHONY: release
release: ## build the release VERSION=v0.1.0 in bin/release, reproducibly; RELEASE_KEY=FILE signs it (takes ten minutes)
	@$(RELEASE_PROGRAM) build --version '$(RELEASE_VERSION)' --output '$(RELEASE_DIRECTORY)' \
		--repository '$(RELEASE_IMAGE)' --key '$(abspath $(RELEASE_KEY))' --builder '$(RELEASE_BUILDER)' \
		$(if $(RELEASE_PLATFORMS),--targets '$(RELEASE_PLATFORMS)') $(if $(ALLOW_DIRTY),--allow-dirty)

.PHONY: release-verify
release-verify: ## verify the checksums of VERSION in bin/release, and with RELEASE_PUBLIC_KEY=FILE the signatures
	@$(RELEASE_PROGRAM) verify --directory '$(RELEASE_DIRECTORY)' --key '$(abspath $(RELEASE_PUBLIC_KEY))'

.PHONY: release-check
release-check: ## build VERSION again in a clone in another directory, and compare it with bin/release
	@RELEASE_IMAGE='$(RELEASE_IMAGE)' RELEASE_BUILDER='$(RELEASE_BUILDER)' RELEASE_PLATFORMS='$(RELEASE_PLATFORMS)' \
		tools/release-check.sh '$(RELEASE_VERSION)'

.PHONY: release-push
release-push: ## push the image of VERSION in bin/release to RELEASE_IMAGE, and the chart to RELEASE_CHARTS
	@$(RELEASE_PROGRAM) push --directory '$(RELEASE_DIRECTORY)' --to '$(RELEASE_IMAGE):$(RELEASE_VERSION)' \
		--charts '$(RELEASE_CHARTS)'

.PHONY: release-tags
release-tags: ## create the tags of VERSION, also for nested modules, and print the command that publishes them
	@$(RELEASE_PROGRAM) tag --version '$(RELEASE_VERSION)'

.PHONY: release-tags-check
release-tags-check: ## check that all tags of VERSION exist
	@$(RELEASE_PROGRAM) tag --check --version '$(RELEASE_VERSION)'

## Code quality

.PHONY: verify
verify: lint ## check formatting, go vet, go mod tidy, the linters, the workflows, the exported API and pairs of types
	@test -z "$$(gofmt -l .)" || { gofmt -d .; exit 1; }
	cd $(KINDNODE_MODULE) && $(WITHOUT_CGO) go vet . ./docker
	@set -e; for m in $(ALL_MODULES); do echo "cd $$m && go mod tidy -diff"; (cd $$m && go mod tidy -diff); done
	cd tools && $(WITHOUT_CGO) go vet ./... && $(WITHOUT_CGO) go test $(TEST_FLAGS) ./knots
	cd tools && $(WITHOUT_CGO) go run ./knots -C .. -max knots/max.txt ./dynamiccontroller/... ./handlers/... ./restmapper/...
	$(ACTIONLINT) .github/workflows/*.yml
	tools/rename_test.sh
	tools/apidiff_test.sh
	tools/apidiff.sh
	cd tools && go run ./apilist .. | diff ../docs/api.md - || { echo 'run "make api", and read the difference' >&2; exit 1; }

.PHONY: api
api: ## write the list of exported identifiers to docs/api.md
	mkdir -p bin
	cd tools && go run ./apilist .. >../bin/api.md
	mv bin/api.md docs/api.md

.PHONY: lint
lint: ## run the linters of .golangci.yml in the modules with most of the code (the first build takes minutes)
	@set -e; for m in $(LINTED_MODULES); do echo "cd $$m && golangci-lint run ./..."; (cd $$m && $(GOLANGCI_LINT) run ./...); done

.PHONY: vulnerabilities
vulnerabilities: ## check for known vulnerabilities (requires access to https://vuln.go.dev)
	@set -e; for m in . $(PLATFORM_MODULE) install examples/controller-runtime; do echo "cd $$m && govulncheck ./..."; \
		(cd $$m && $(GOVULNCHECK) ./...); done

.PHONY: rename
rename: ## replace values of tools/project.mk in all files, for example make rename MODULE=example.com/other/name
	@tools/rename.sh $(foreach name,MODULE ADVISORIES MAINTAINERS RELEASE_IMAGE RELEASE_CHARTS,'$(name)=$($(name))')

.PHONY: clean
clean: ## remove all build output
	rm -rf bin
