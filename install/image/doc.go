// Program image builds the image of the platform for amd64 and arm64, without a container engine and without a base
// image. It writes an OCI image layout, an archive for "docker load" for each architecture, and a software bill of
// materials (SBOM) for each architecture. With --push, it pushes the image to a registry.
//
// Two builds of the same commit with the same version of Go have equal digests.
package main
