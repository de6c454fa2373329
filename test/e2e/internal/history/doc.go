// Package history is what several replicas and a test did to each other, as a log that all of them write, and a checker
// of it.
//
// The log is a file that each process opens with O_APPEND and writes a JSON line to with one write(2) an event, so that
// lines of several processes never mix. Events carry the time of CLOCK_MONOTONIC, which all processes of a machine share
// and which goes on while one of them is stopped; they are ordered by it, and not by when they got to the file.
//
// [Check] knows nothing of how replicas work. It finds out from requests for the lease, which each process notes as it
// sends them and as they are confirmed, until when a replica may have led at the latest.
package history
