package election

import "time"

// Kind is the kind of an operation.
type Kind int

const (
	// Wait until Until, or until the next input.
	Wait Kind = iota
	// Read the Lease, and answer with the record.
	Read
	// Create the Lease with the Record, and answer.
	Create
	// Update the Lease that was read or written last with the Record, and answer.
	Update
	// Confirm that this replica may lead, and answer. The Lease has been acquired.
	Confirm
	// Claimed reports that this replica has recreated a deleted Lease. It leads once it has held it until Until.
	Claimed
	// Begin a term, which opens the fence. The Lease was acquired by a request that was sent at Sent.
	Begin
	// Renew the term, as of Sent.
	Renew
	// Lose ends the term. Another replica may be able to lead. Reason completes "lease lost: ".
	Lose
	// Report that Leader leads, as far as this replica has observed. It is empty if no replica does.
	Report
	// Stop: the campaign is over.
	Stop
)

func (k Kind) String() string {
	return [...]string{
		"wait", "read", "create", "update", "confirm", "claimed", "begin", "renew", "lose", "report", "stop",
	}[k]
}

// Blocks reports whether the operation takes time: a wait, or one that must be answered. The others only report what
// has happened.
func (k Kind) Blocks() bool { return k <= Confirm }

// Operation is what must be done next. Only the fields that its kind names are set.
type Operation struct {
	Kind   Kind
	Record Record
	Sent   Instant
	Until  time.Time
	Leader string
	Reason string
	// Deadline is the time at which a request must be cancelled, or zero. The term ends then.
	Deadline time.Time
}

// Outcome is what is known about the effect of a request.
type Outcome int

const (
	// Succeeded: the request took effect. Confirm succeeds if this replica may lead.
	Succeeded Outcome = iota
	// Missing: the Lease, or its namespace, does not exist.
	Missing
	// Refused: the request had no effect.
	Refused
	// Denied is like Refused, and it is not worthwhile to repeat the request soon: a permission is missing.
	Denied
	// Unknown: the request may have taken effect, or may do so later.
	Unknown
)

func (o Outcome) String() string {
	return [...]string{"succeeded", "missing", "refused", "denied", "unknown"}[o]
}

// Answer is the result of a request.
type Answer struct {
	Sent    Instant // before the request was sent
	Outcome Outcome
	Record  Record // of a successful Read
}
