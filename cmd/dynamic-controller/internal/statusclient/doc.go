// Package statusclient reads the status document of a replica, and prints it. It reaches the replica at a URL, or finds
// the Pod of the leader and forwards a port to it.
package statusclient
