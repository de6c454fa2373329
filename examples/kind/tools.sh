# Functions of the scripts that use docker, kind and kubectl. They are sourced from the top of the repository, by a script
# that defines say.
tools=$PWD/bin/tools

# tool NAME PACKAGE builds a tool that is not installed, at the version in test/kindnode/go.mod.
tool() {
	if ! command -v "$1" >/dev/null 2>&1; then
		say "$1 is not installed: building it"
		(cd test/kindnode && CGO_ENABLED=0 go build -o "$tools/$1" "$2")
	fi
}

# use_tools makes kind and kubectl available.
use_tools() {
	tool kind sigs.k8s.io/kind
	tool kubectl k8s.io/kubernetes/cmd/kubectl
	PATH=$PATH:$tools
}

# choose_node_image sets KIND_NODE_IMAGE unless it is set. Where kind's own image can be pulled, it stays empty.
choose_node_image() {
	if [ -z "${KIND_NODE_IMAGE:-}" ] && ! docker manifest inspect kindest/node:v1.34.0 >/dev/null 2>&1; then
		say "no registry has kind's node image: using one from make kind-image"
		KIND_NODE_IMAGE=dynamic-controller/kind-node:v1.37.1
		make --no-print-directory kind-image KIND_IMAGE="$KIND_NODE_IMAGE"
	fi
	KIND_NODE_IMAGE=${KIND_NODE_IMAGE:-}
}

# use_privileges IMAGE puts a stand-in for docker first in the path if the Engine cannot run privileged containers.
use_privileges() {
	if ! docker run --rm --privileged --user 0 "$1" --help >/dev/null 2>&1; then
		say "the Docker Engine cannot run privileged containers: nodes get the capabilities that there are"
		(cd test/kindnode && CGO_ENABLED=0 go build -o "$tools/unprivileged/docker" ./docker)
		PATH=$tools/unprivileged:$PATH
	fi
}

# build_image IMAGE builds the platform's image from nothing but its binary.
build_image() {
	arch=$(docker version --format '{{.Server.Arch}}')
	CGO_ENABLED=0 GOOS=linux GOARCH=$arch go build -ldflags '-s -w' -o bin/kind/image/dynamic-controller ./cmd/dynamic-controller
	docker build --quiet --tag "$1" --file examples/kind/Dockerfile bin/kind/image >/dev/null
}
