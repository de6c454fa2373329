// Package kind is what runs two replicas of the platform on kind: manifests, an image and a script. There is no code in it
// but the tests, which prove of them what an API server can.
package kind
