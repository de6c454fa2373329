# Functions for scripts that use docker, kind and kubectl. A script must define the function say and source this file
# from the root of the repository.
tools=$PWD/bin/tools

# tool NAME PACKAGE builds a tool at the version in test/kindnode/go.mod, unless it is installed.
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

# choose_node_image sets KIND_NODE_IMAGE, unless it is already set or kind's own image can be pulled.
choose_node_image() {
	if [ -z "${KIND_NODE_IMAGE:-}" ] && ! docker manifest inspect kindest/node:v1.34.0 >/dev/null 2>&1; then
		say "kind's node image cannot be pulled: using the image built by make kind-image"
		KIND_NODE_IMAGE=dynamic-controller/kind-node:v1.37.1
		make --no-print-directory kind-image KIND_IMAGE="$KIND_NODE_IMAGE"
	fi
	KIND_NODE_IMAGE=${KIND_NODE_IMAGE:-}
}

# use_privileges IMAGE puts a docker wrapper first in PATH if the Engine cannot run privileged containers.
use_privileges() {
	if ! docker run --rm --privileged --user 0 "$1" --help >/dev/null 2>&1; then
		say "the Docker Engine cannot run privileged containers: nodes get the available capabilities"
		(cd test/kindnode && CGO_ENABLED=0 go build -o "$tools/unprivileged/docker" ./docker)
		PATH=$tools/unprivileged:$PATH
	fi
}

# build_image IMAGE builds the image of the platform, which contains only its binary.
build_image() {
	arch=$(docker version --format '{{.Server.Arch}}')
	CGO_ENABLED=0 GOOS=linux GOARCH=$arch go build -C cmd/dynamic-controller -ldflags '-s -w' -o "$PWD/bin/kind/image/dynamic-controller" .
	docker build --quiet --tag "$1" --file examples/kind/Dockerfile bin/kind/image >/dev/null
}
