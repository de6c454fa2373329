# "make" says what there is. All of it works from a clean clone with Go and make alone; what else there is, is used:
# a C compiler for the race detector.

.DEFAULT_GOAL := help
.NOTPARALLEL:

MODULE := github.com/dynamic-controller/engine

# Packages whose tests run a control plane, and what they build on, by who imports test/cluster. They have the machine to
# themselves, one after another, and are never cached: what they start is not among what Go knows of.
CLUSTER_PACKAGES = $(shell go list -f '{{.ImportPath}} {{join .Imports " "}} {{join .TestImports " "}} {{join .XTestImports " "}}' ./... \
	| awk '{ for (i = 1; i <= NF; i++) if ($$i == "$(MODULE)/test/cluster") { print $$1; next } }')
UNIT_PACKAGES = $(filter-out $(CLUSTER_PACKAGES),$(shell go list ./...))

# The race detector needs cgo, for which Go looks for a C compiler.
RACE = $(if $(filter 1,$(shell go env CGO_ENABLED)),-race)
SAY_RACE = $(if $(RACE),,@echo "there is no C compiler (or CGO_ENABLED=0): the tests go without the race detector")

# Modules within this one. The first is built as it is used, without cgo, or all of Kubernetes would be built twice.
CONTROLPLANE_MODULE := test/controlplane
# So is the second, of which everyday tests build only what does not contain Kubernetes.
KINDNODE_MODULE := test/kindnode
OTHER_MODULES := $(patsubst %/go.mod,%,$(filter-out $(CONTROLPLANE_MODULE)/go.mod $(KINDNODE_MODULE)/go.mod,$(wildcard test/*/go.mod examples/*/go.mod)))
ALL_MODULES := . tools $(CONTROLPLANE_MODULE) $(KINDNODE_MODULE) $(OTHER_MODULES)

.PHONY: help
help: ## say what there is
	@awk -F ':.*## ' '/^[a-z0-9.%-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  KUBECONFIG=FILE make demo (or run) takes that cluster; TEST_KUBECONFIG=FILE make test-integration tests on it."

## To see it

.PHONY: demo
demo: build $(if $(KUBECONFIG),,controlplane) ## see a Blueprint served, changed and mended, and a killed leader followed, on a control plane of its own
	@go build -o bin/demo ./examples/demo
	@bin/demo

.PHONY: run
run: build $(if $(KUBECONFIG),,controlplane) ## the same setup, to be played with until Ctrl-C
	@go build -o bin/demo ./examples/demo
	@bin/demo --stay

KIND_DEMO_LOG ?= bin/kind-demo.log

.PHONY: kind-demo
kind-demo: ## the demo with two replicas on a kind cluster of its own; needs docker. KEEP=1 keeps the cluster
	@KIND_DEMO_LOG=$(KIND_DEMO_LOG) examples/kind/demo.sh

.PHONY: kind-picture
kind-picture: ## draw docs/kind-demo.svg from the last make kind-demo, or from the output in KIND_DEMO_LOG=FILE
	@test -f $(KIND_DEMO_LOG) || { echo "make kind-picture: there is no $(KIND_DEMO_LOG): run make kind-demo first" >&2; exit 1; }
	@mkdir -p bin && go run ./examples/kind/picture <$(KIND_DEMO_LOG) >bin/kind-demo.svg
	@mv bin/kind-demo.svg docs/kind-demo.svg

example-%: $(if $(KUBECONFIG),,controlplane) ## see an example at work: make example-hello and so on, by the names of their folders
	@go build -C examples/$* -o $(CURDIR)/bin/examples/$* .
	@go build -o bin/examples/show ./examples/internal/show
	@bin/examples/show $*

## To build it

.PHONY: build
build: ## build bin/dynamic-controller
	@go build -o bin/dynamic-controller ./cmd/dynamic-controller

.PHONY: controlplane
controlplane: bin/controlplane ## build bin/controlplane, a real API server and etcd; the first time takes minutes

VERSION_PACKAGE := k8s.io/component-base/version
CONTROLPLANE_LDFLAGS := -s -w -X $(VERSION_PACKAGE).gitVersion=v1.37.1 -X $(VERSION_PACKAGE).gitMajor=1 \
	-X $(VERSION_PACKAGE).gitMinor=37 -X $(VERSION_PACKAGE).gitTreeState=clean

bin/controlplane: $(filter-out %_test.go,$(wildcard $(CONTROLPLANE_MODULE)/*.go)) $(CONTROLPLANE_MODULE)/go.mod $(CONTROLPLANE_MODULE)/go.sum
	@echo "building kube-apiserver and etcd from their Go modules: the first time this takes some minutes"
	@cd $(CONTROLPLANE_MODULE) && CGO_ENABLED=0 go build -ldflags '$(CONTROLPLANE_LDFLAGS)' -o $(CURDIR)/$@ .
	@touch $@

KIND_IMAGE := dynamic-controller/kind-node:v1.37.1

.PHONY: kind-image
kind-image: ## build a node image for kind without a registry; needs root, docker, debootstrap, gcc and many minutes
	@cd $(KINDNODE_MODULE) && go run . --tag $(KIND_IMAGE) --work $(CURDIR)/bin/kindnode

## To test it

.PHONY: test
test: controlplane ## everything, with the race detector where there is a C compiler
	$(SAY_RACE)
	go test $(RACE) $(UNIT_PACKAGES)
	go test $(RACE) -count=1 -p 1 -timeout 20m $(CLUSTER_PACKAGES)
	cd $(CONTROLPLANE_MODULE) && CGO_ENABLED=0 go vet ./... && CGO_ENABLED=0 go test ./...
	cd $(KINDNODE_MODULE) && go vet . ./docker && go test . ./docker
	@set -e; for m in $(OTHER_MODULES); do echo "cd $$m && go vet ./... && go test ./..."; (cd $$m && go vet ./... && go test -count=1 ./...); done

.PHONY: test-unit
test-unit: ## the tests that need no control plane, quickly
	go test $(UNIT_PACKAGES)

.PHONY: test-race
test-race: ## the same with the race detector, which needs a C compiler, three times
	CGO_ENABLED=1 go test -race -count=3 $(UNIT_PACKAGES)

.PHONY: test-integration
test-integration: controlplane ## the tests on a real control plane, one package after another
	$(SAY_RACE)
	go test $(RACE) -count=1 -p 1 -timeout 20m $(CLUSTER_PACKAGES)

.PHONY: test-e2e
test-e2e: controlplane ## several replicas and every fault once, which is part of "make test" too
	$(SAY_RACE)
	go test $(RACE) -count=1 -v ./test/e2e

.PHONY: test-kind
test-kind: ## what only nodes with kubelets show, on a kind cluster of its own; needs docker
	@examples/kind/with-cluster.sh "make test-kind" dynamic-controller-test go test -tags kind -count=1 -v -timeout 20m ./test/kind

.PHONY: test-kind-smoke
test-kind-smoke: ## start and stop the platform on a kind cluster with one node
	@KIND_CONFIG=examples/kind/single-node.yaml examples/kind/with-cluster.sh "make test-kind-smoke" dynamic-controller-smoke \
		go test -tags kind -count=1 -v -timeout 5m -run TestDeletedLeaderReleasesTheLease ./test/kind

ROUNDS := 100
SEED := 0

.PHONY: test-e2e-rounds
test-e2e-rounds: controlplane ## ROUNDS of random faults, which SEED repeats; 100 take some ten minutes
	$(SAY_RACE)
	go test $(RACE) -count=1 -v -timeout 3h -run Rounds ./test/e2e -rounds $(ROUNDS) -seed $(SEED)

.PHONY: bench
bench: controlplane ## measure the engine beside others; takes half an hour
	cd test/bench && go test -run '^$$' -bench . -timeout 3h .

## To keep it in order

.PHONY: verify
verify: lint ## whether all is formatted, vetted, tidy and linted
	@test -z "$$(gofmt -l .)" || { gofmt -d .; exit 1; }
	go vet ./...
	cd $(CONTROLPLANE_MODULE) && CGO_ENABLED=0 go vet ./...
	cd $(KINDNODE_MODULE) && CGO_ENABLED=0 go vet ./...
	@set -e; for m in $(OTHER_MODULES); do echo "cd $$m && go vet ./..."; (cd $$m && go vet ./...); done
	@set -e; for m in $(ALL_MODULES); do echo "cd $$m && go mod tidy -diff"; (cd $$m && go mod tidy -diff); done

.PHONY: lint
lint: ## run the linters of .golangci.yml; building them takes minutes the first time
	go tool -modfile=tools/go.mod golangci-lint run ./...

.PHONY: clean
clean: ## remove what was built
	rm -rf bin
