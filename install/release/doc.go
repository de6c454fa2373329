// Program release builds a release of the platform, and verifies, publishes and tags it. "make release" runs it.
//
//	release build --version v0.1.0
//	release verify --directory ../bin/release/v0.1.0 --key cosign.pub
//	release push --directory ../bin/release/v0.1.0 --to registry.example.com/platform/dynamic-controller:v0.1.0
//	release tag --version v0.1.0
//
// The build command writes archives with the binary for each platform, the image, the chart, the manifests, a manifest
// for krew, software bills of materials (SBOMs), checksums, provenance and, with a key, signatures. Two builds of the
// same commit with the same version of Go have equal bytes, apart from the signatures.
//
// The push command pushes the image, and with --charts the chart as an OCI artifact. See "Releases" in CONTRIBUTING.md
// for the tools that were weighed.
package main
