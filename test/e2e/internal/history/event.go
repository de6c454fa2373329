package history

// Event is one line of the log.
type Event struct {
	At   Time   `json:"at"`
	Who  string `json:"who"` // a process: a replica that was started again is another one
	Kind Kind   `json:"kind"`

	Term    int64  `json:"term,omitempty"`    // of leading, as the replica counts it
	Object  string `json:"object,omitempty"`  // its name
	N       int64  `json:"n,omitempty"`       // which change of the object the replica saw, or the test made
	ID      int64  `json:"id,omitempty"`      // of a request; each process counts for itself
	Version string `json:"version,omitempty"` // a resourceVersion
	Holder  string `json:"holder,omitempty"`  // of the lease
	Error   string `json:"error,omitempty"`   // why it did not go well
}

// Kind is what an event tells.
type Kind string

// What a replica tells of itself.
const (
	Started Kind = "started" // the process; Holder is its identity
	Watches Kind = "watches" // its per-replica half has begun
	Leads   Kind = "leads"   // its leading half has begun, in Term
	Lost    Kind = "lost"    // the context of Term ended because the lease was lost
	Led     Kind = "led"     // its leading half has returned
	Begin   Kind = "begin"   // a handler begins with Object
	End     Kind = "end"     // and is done, with Error or without; it had seen change N
	Exit    Kind = "exit"    // the process ends by itself
)

// What a replica tells of its requests. Their ID is that of one attempt: what a client tries again has another.
const (
	Write   Kind = "write"   // a fenced write begins: it has not passed the fence
	Sent    Kind = "sent"    // it has passed the fence
	Wrote   Kind = "wrote"   // it is over, with Error or without
	Renew   Kind = "renew"   // a write of the lease in its own name begins
	Renewed Kind = "renewed" // that was confirmed
	Release Kind = "release" // a write of the lease that names nobody begins
	Seen    Kind = "seen"    // the process has found a lease, for the first time
)

// What the test tells of what it did, and of what it saw at the API server itself.
const (
	Changed Kind = "changed" // change N of Object was confirmed
	Taking  Kind = "taking"  // the lease is about to be given to Holder by force
	Taken   Kind = "taken"   // that was confirmed
	Resumed Kind = "resumed" // Who was stopped, and goes on
	Killed  Kind = "killed"  // Who is gone
	Fault   Kind = "fault"   // what is broken, in Error; for whoever reads the log
	Held    Kind = "held"    // the lease of Version names Holder
	Arrived Kind = "arrived" // the write that made Version of Object is one of Who's
)
