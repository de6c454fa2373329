// Package history records the events of several replicas and a test in a shared log, and checks the log.
//
// The log is a file that each process opens with O_APPEND. Each event is a JSON line written by a single write(2), so
// that the lines of several processes never interleave. The time of an event comes from CLOCK_MONOTONIC, a clock that
// all processes on a machine share and that keeps running while a process is stopped. Events are ordered by this time,
// not by their position in the file.
//
// [Check] makes no assumptions about the implementation of replicas. Each process logs its requests for the lease when
// it sends them and when they are confirmed. From these events, Check derives the latest time at which each replica
// could have been leading. With shards, each shard has a lease, and Check checks each lease by itself.
package history
