package election

// Role is what the holder of a Lease leads. It determines how candidates differ.
type Role int

const (
	// Single is the role of a Lease without shards.
	Single Role = iota
	// Fleet is the role of the Lease with which a fleet elects its leader.
	Fleet
	// Shard is the role of the Lease of a shard.
	Shard
)

// FleetFactor is the duration of a fleet's own Lease in multiples of LeaseDuration. A replica of any role can find a
// Lease with this duration.
const FleetFactor = 4

// traits are the differences between the roles.
type traits struct {
	// jitter is the largest addition to the time between two attempts of a candidate, in multiples of RetryPeriod.
	// Without it, candidates read at the interval RetryPeriod. Candidates of shards are few, and their number is known.
	jitter float64
	// existed reports that a Lease that is missing must have existed.
	existed bool
	// confirms reports that a term begins only after it was confirmed.
	confirms bool
	// yields is the time for which a candidate leaves a released Lease to the expected leader, in multiples of
	// RetryPeriod.
	yields int
}

var roles = [...]traits{
	Single: {jitter: 1.2}, // as in client-go
	Fleet:  {yields: 8},
	Shard:  {existed: true, confirms: true, yields: 2},
}
