// Package fleet describes the Leases of a fleet, which is the set of replicas that share shards. It parses them, and
// watches them. What it reports is advice: no part of it decides which replica may lead.
package fleet
