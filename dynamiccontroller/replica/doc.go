// Package replica runs the two halves of a process of which there are several: what every replica does, and what only the one
// that leads does. It elects the leader with a Lease and sees to it that no other replica's work can meet the leader's.
//
//	mapper, _ := restmapper.New(log, cfg)
//	dc, _ := dynamiccontroller.NewForConfig(log, dynamiccontroller.Config{}, cfg)
//	r, _ := replica.New(cfg, replica.Options{LeaseName: "my-platform", Log: log})
//	client := dynamic.NewForConfigOrDie(r.FencedConfig()) // what handlers write with
//	r.RegisterWithoutLeaderElection("restmapper", mapper)
//	r.RegisterWithoutLeaderElection("watches", replica.RunFunc(dc.RunWatches))
//	r.Register("dynamic-controller", dc)
//	r.Run(ctx)
//
// # Life of a replica
//
//	New ──▶ Register, RegisterWithoutLeaderElection, at any time until Run has ended
//	  │
//	  └──▶ Run(ctx)
//	         ├── the per-replica half starts, once
//	         └── campaign ──▶ term 1: the fence opens, the leading half starts
//	               ▲             │ lease lost: fence closes, contexts end with ErrLeaseLost
//	               └─────────────┘ all have returned
//	       ctx ends: leading half ends and is joined ──▶ fence closes ──▶ lease released ──▶ per-replica half ends
//
// # What it promises
//
//   - L1: the leading half of two replicas never runs at once, but for the overlap below. A clean end renews the lease until
//     the last runnable of the leading half has returned, then releases it, and only if it still names this replica. If
//     they outlast Options.ShutdownTimeout, return an error when told to end, or panic, it is left to expire. A deleted,
//     emptied or force-taken lease ends the term at the first sight of it.
//   - L2: when the lease is lost, or the replica can no longer be certain that it holds the lease, the contexts of the
//     term end with [ErrLeaseLost] and [Replica.FencedConfig] starts no further writes. Both happen before another
//     replica can lead. After a jump of the wall clock the contexts can end later, see below, but writes are still
//     refused in time. The process keeps running and campaigns again once the term's runnables have returned, or Run
//     returns the error ([ExitOnLoss]).
//   - L3: runnables of the per-replica half start once a process, whatever happens to the leadership.
//   - L4: nothing of a term is left when it is over and its runnables have returned.
//
// An API server that cannot be reached, and clocks that jump, cost terms and never make it spin or exit. A wall clock that is
// set ahead by more than what is left of the lease ends the term; one that is set back changes nothing.
//
// # What it does not promise
//
//   - Someone who takes the lease by force, by writing another holder into it, or who writes all that a release writes (no
//     holder, a duration of one second, two equal times), makes two leaders until the first one looks: at most RetryPeriod
//     and two requests later, an update that conflicts and a get, if the API server answers.
//   - A process that has just started and finds no lease creates it at once, or a first start would take a LeaseDuration.
//     If someone deleted the lease just before, the leader notices within RetryPeriod and one request. Who has seen the
//     lease before creates it too, and leads only after it has held it for a LeaseDuration.
//   - Both may be as long as the lease lasts where the leader cannot reach the API server at that time.
//   - A lease that names a holder and a longer duration than ours is honoured for as long as it says, for its holder may
//     have been configured so. Who writes a huge one into it keeps all from leading, until somebody empties it.
//   - A write that was sent before the fence closed may arrive late; nothing here can call it back. A process that is stopped
//     between the look at the clock and the wire sends the write when it is continued.
//   - A process that was stopped for longer than the lease lasts (SIGSTOP) may start work after it continues. Its
//     contexts end a few milliseconds later, when the first timer fires. If only the wall clock has moved on, because
//     it was set or a virtual machine was suspended, no timer fires. The contexts then end at most RetryPeriod after
//     the jump. In both cases the writes of that work are refused, because each write checks both clocks.
//   - The Err method of the context that a leading runnable receives checks both clocks too, and so does Err of
//     contexts derived from it with context.WithValue. A runnable that calls Err before each piece of work starts no
//     work after the deadline. Done does not check the clocks, and neither does a context with its own cancel function
//     or timeout: these end only after a timer, a write or such a call of Err has ended the term.
//   - All this holds while the clocks of two machines run at rates that differ by less than a tenth, and all replicas have
//     the same LeaseDuration.
//   - A runnable that ignores its context holds up this replica's next term for as long, and its work is stopped by nothing
//     but the fence.
//
// # What it needs
//
// The verbs get, create and update on leases (coordination.k8s.io) in the lease's namespace. create cannot be limited to a
// resourceName; the others can.
//
// An API server that answers requests for the lease in time. A request is cancelled after half of RenewDeadline, see
// [Options]. If the API server always takes longer, no replica ever leads.
package replica
