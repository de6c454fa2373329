package history

// Event is one line of the log.
type Event struct {
	At      Time   `json:"at"`
	Process string `json:"process"` // The name of the process. A restarted replica has a new process name.
	Kind    Kind   `json:"kind"`

	// Lease is the name of the lease that the event is about. It is empty for events that concern the whole process.
	Lease   string `json:"lease,omitempty"`
	Term    int64  `json:"term,omitempty"`    // The replica's term number.
	Object  string `json:"object,omitempty"`  // The name of an object.
	N       int64  `json:"n,omitempty"`       // The number of a change to the object.
	ID      int64  `json:"id,omitempty"`      // The number of a request, unique within the process.
	Version string `json:"version,omitempty"` // A resourceVersion.
	Holder  string `json:"holder,omitempty"`  // The holder of the lease.
	Error   string `json:"error,omitempty"`   // The error from a failed operation.
}

// Kind is the kind of an event.
type Kind string

// Events of a replica.
const (
	Started Kind = "started" // The process has started with the identity Holder.
	Watches Kind = "watches" // The per-replica runnables have started, or those of the warm shard with the Lease.
	Warm    Kind = "warm"    // The replica keeps the shard with the Lease warm, and has synced.
	Cold    Kind = "cold"    // The replica does not keep the shard with the Lease warm any more.
	Left    Kind = "left"    // The runnables of the warm shard with the Lease have returned. Error describes what is left.
	Leads   Kind = "leads"   // The leader-gated runnables have started in Term.
	Lost    Kind = "lost"    // The context of Term was cancelled because the lease was lost.
	Led     Kind = "led"     // The leader-gated runnables have returned.
	Begin   Kind = "begin"   // A handler call for Object has started.
	End     Kind = "end"     // A handler call that processed change N has returned, possibly with Error.
	Exit    Kind = "exit"    // The process exits.
)

// Requests from a replica. The ID identifies one attempt. A retry has a new ID.
const (
	Write   Kind = "write"   // A fenced write starts and has not yet passed the fence.
	Sent    Kind = "sent"    // A fenced write has passed the fence.
	Wrote   Kind = "wrote"   // A fenced write has finished, possibly with Error.
	Renew   Kind = "renew"   // The process sends a write that makes it the holder of the lease.
	Renewed Kind = "renewed" // The write to the lease has been confirmed.
	Release Kind = "release" // The process sends a write that clears the holder of the lease.
	Read    Kind = "read"    // The process has read the lease.
)

// needsLease reports whether an event without a lease concerns no lease, as opposed to all leases of the process.
func (k Kind) needsLease() bool {
	switch k {
	case Begin, End, Write, Sent, Wrote, Arrived, Changed:
		return true
	}
	return false
}

// Actions and observations by the test. A replica stops or kills itself if the test has set a trap for it.
const (
	Trapped Kind = "trapped" // The process has reached the trap that Error names.
	Changed Kind = "changed" // Change N of Object has been confirmed.
	Taking  Kind = "taking"  // The test is about to make Holder the holder of the lease.
	Taken   Kind = "taken"   // The change of holder has been confirmed.
	Forced  Kind = "forced"  // The test is about to delete, empty or take the lease.
	Stopped Kind = "stopped" // The process is about to be stopped.
	Resumed Kind = "resumed" // The test resumes the process.
	Stalled Kind = "stalled" // The test stalls the connections of the process.
	Healed  Kind = "healed"  // The test delivers the data of the stalled connections, or has lost it.
	Killed  Kind = "killed"  // The process was killed, or is about to be.
	Down    Kind = "down"    // The API server is about to be killed.
	Up      Kind = "up"      // The API server is available again.
	Fault   Kind = "fault"   // The test injects a fault. Error describes the fault for readers of the log.
	Held    Kind = "held"    // At Version, Holder held the lease.
	Planned Kind = "planned" // The plan names the replicas in Holder, separated by spaces, as leader and standby.
	Arrived Kind = "arrived" // A write by the process has resulted in Version of Object.
)
