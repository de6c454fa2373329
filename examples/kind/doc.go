// Package kind contains the manifests, the image and the scripts for two replicas of the platform on kind. It contains
// no code except tests.
package kind
