// Package install contains what is needed to install the platform: the Helm chart in charts/dynamic-controller, the
// manifests for kustomize that are rendered from it, and the program that builds the image. The package itself contains
// no code except tests.
package install
