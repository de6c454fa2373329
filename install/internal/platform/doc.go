// Package platform builds the binaries and the image of the platform, each with a software bill of materials (SBOM). It
// needs neither a container engine nor a base image.
//
// Two builds of the same commit with the same version of Go have equal bytes, on every machine and in every directory.
package platform
