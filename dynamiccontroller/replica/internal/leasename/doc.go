// Package leasename names the Leases of a fleet, which is the set of replicas that share shards. The name of the fleet
// is that of its own Lease.
package leasename
