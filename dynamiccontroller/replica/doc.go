// Package replica runs one of several replicas of a process. It starts some runnables on every replica and others
// only on the leader, which it elects with a Lease. It keeps the work of two leaders from overlapping.
//
//	func run(ctx context.Context, log logr.Logger, cfg *rest.Config) error {
//		mapper, err := restmapper.New(log, cfg)
//		if err != nil {
//			return err
//		}
//		dc, err := dynamiccontroller.NewForConfig(log, dynamiccontroller.Config{}, cfg)
//		if err != nil {
//			return err
//		}
//		r, err := replica.New(log, cfg, replica.Options{LeaseName: "my-platform"})
//		if err != nil {
//			return err
//		}
//		client, err := dynamic.NewForConfig(r.FencedConfig()) // the client that handlers write with
//		if err != nil {
//			return err
//		}
//		err = errors.Join(
//			dc.StartServingGVK(ctx, widgets, reconcileWith(client)),
//			r.RegisterWithoutLeaderElection("restmapper", mapper),
//			r.RegisterWithoutLeaderElection("watches", replica.RunFunc(dc.RunWatches)),
//			r.Register("dynamic-controller", dc, replica.ScopeLeader),
//		)
//		if err != nil {
//			return err
//		}
//		return r.Run(ctx)
//	}
//
// # Runnables and terms
//
// Each runnable has a [Scope]. Those of ScopeReplica are per-replica: they start once, with Run. Those of ScopeLeader
// are leader-gated: they start with every term. A term is one period of leadership.
//
// With shards, there are two more scopes; see below.
//
//	New ──▶ Register (at any time until Run has returned)
//	  │
//	  └──▶ Run(ctx)
//	         ├── per-replica runnables start
//	         └── campaign ──▶ term 1: the fence opens, leader-gated runnables start
//	               ▲             │ lease lost: the fence closes, contexts are cancelled with ErrLeaseLost
//	               └─────────────┘ all runnables of the term have returned
//	       ctx cancelled: leader-gated runnables return ──▶ the fence closes, the lease is released
//	                      ──▶ per-replica runnables return
//
// [Replica.FencedConfig] and [Replica.Fence] return configs for the clients that write. Options.OnNewLeader is called
// on every replica when the leader changes. [Replica.Status] returns the current leader.
//
// # Guarantees
//
//   - L1: Leader-gated runnables of two replicas never run at the same time, except as listed below. During a clean
//     shutdown the lease is renewed until the last leader-gated runnable has returned. Then it is released, but only if
//     it still names this replica. The lease is left to expire if runnables do not return within
//     Options.ShutdownTimeout, return an error after they were stopped, or panic. This replica then does not campaign
//     until the work that they have left running has returned; see [Runnable]. If somebody deletes the lease, empties
//     it or takes it by force, the term ends when a request from the leader first observes this.
//   - L2: When the lease is lost, or the replica cannot be certain that it still holds the lease, the contexts of the
//     term are cancelled with [ErrLeaseLost] and no further writes start through a fenced config. Both happen
//     before another replica can lead. If the wall clock jumps, contexts can be cancelled too late, as described
//     below, but writes are still refused in time. The process keeps running. It campaigns again once the runnables of
//     the term have returned, and the work that they have left running. With [ExitOnLoss], Run returns the error
//     instead.
//   - L3: Per-replica runnables start once per process, regardless of leadership.
//   - L4: A term leaves nothing behind once it is over and its runnables have returned.
//   - L6: When a leader has released the lease, the engine of the next one calls the handler for an object after its
//     caches contain what the calls for this object have written in the last ten seconds (D12), except in the cases
//     below. For that, a write of a handler that was sent before its context was cancelled has a quarter of a second to
//     complete. (D12 and L5 are promises of the engine.)
//
// # Shards
//
// With Options.Shards, the types are divided into shards. Each shard has a leader, which reconciles its types, and a
// standby. Both keep the watches of these types warm. Other replicas do not watch them. The replicas form a fleet,
// whose leader plans which replicas should lead and keep warm which shards.
//
//	err = errors.Join(
//		r.Register("once", once, replica.ScopeLeader),               // on the leader of the fleet
//		r.Register("mapper", mapper, replica.ScopeReplica),          // on every replica
//		r.Register("watches", dc.Watches(), replica.ScopeWarmShard), // for each shard that is led or kept warm here
//		r.Register("dynamic-controller", dc, replica.ScopeShard),    // for each shard that is led here
//	)
//
// Every replica must serve all types. With one shard, which is the default, ScopeShard is the same as ScopeLeader, and
// ScopeWarmShard is the same as ScopeReplica.
//
// The following is guaranteed, in addition to L1 to L4 for each shard:
//
//   - H1: A type is in one shard, by a function of its group, its resource and the number of shards.
//   - H2: A shard has one leader at a time. Replicas with different numbers of shards never lead at the same time, also
//     not replicas without shards. The number of shards is recorded in the Lease. It changes when all replicas with
//     shards are configured for another number, and no shard is led while it changes. Replicas without shards lead when
//     all replicas with shards have left. If the last one crashes, they wait for four LeaseDurations.
//   - H3: A write through a fenced config is sent only if its context carries a current term of this replica.
//   - H4: The Lease of a shard is released after its runnables have returned.
//   - H5: L6 holds for each shard, also when it has moved.
//   - H6: If the leader of a shard crashes, its standby leads within LeaseDuration + 5 x RetryPeriod. If the leader
//     shuts down or the shard is moved, another replica that keeps it warm leads as soon as the Lease has been
//     released. A shard is moved only when its running work has returned; see [ShardDrainer]. If a shard has no copy,
//     the leader of the fleet assigns one. If it does not within two LeaseDurations, another replica leads the shard
//     without a plan. [Status] shows shards without a leader.
//   - H7: H1 to H4 do not depend on the plan, or on what replicas report about themselves.
//   - H9: A shard that has left a replica leaves nothing behind.
//
// A new replica leads shards after it has observed two renewals of the fleet's Lease. Shards are moved for balance when
// no replica has gone for two LeaseDurations, and to replicas that have run for that long. Replicas that crash
// repeatedly do not count, and lead nothing for some time. If the Lease of a shard is missing, the shard is led again
// after a LeaseDuration.
//
// Shards are balanced by what they cost, if runnables report it (see [ShardMeter]), within the Options.Capacity of each
// replica. If there is too little capacity, or if three leaders of a shard in succession have crashed soon after they
// had acquired it, the shard is not led for some time. H6 does not hold for it, and Status names the reason.
//
// # Interruptions
//
// An unreachable API server or a clock that jumps can end a term. Neither causes a busy loop or an exit. A term ends if
// the wall clock is set forward by more than the remaining validity of the lease. Setting it back has no effect.
//
// # Limitations
//
//   - Two replicas lead for a short time if somebody takes the lease by force, either by writing another holder or by
//     writing the content of a released lease: no holder, a duration of one second, and two equal times. The overlap
//     lasts until the first leader reads the lease. If the API server answers, this takes at most RetryPeriod plus the
//     time of two requests: an update that conflicts, and a get.
//   - If the lease is missing, a process that has never seen it creates it and leads immediately. Otherwise, every
//     first start would be delayed by a LeaseDuration. If somebody deleted the lease shortly before, the old leader
//     observes this within RetryPeriod plus the time of one request. A process that has seen the lease before also
//     creates a missing lease, but leads only after it has held the new lease for a LeaseDuration.
//   - If the old leader cannot reach the API server in the meantime, both of these overlaps can last until the lease
//     expires.
//   - If a lease has a holder and its duration is longer than the configured one, replicas respect the longer duration,
//     because the holder may have a different configuration. An excessive duration blocks every election until the
//     lease is emptied.
//   - A write that was sent before the fence closed can take effect afterwards. If a process is suspended between
//     checking the clocks and sending the write, it sends the write when it resumes. With [Replica.FenceOnServer] and
//     the policy of package serverfence, the API server rejects most such writes.
//   - A process that was suspended (SIGSTOP) for longer than the lease lasts can start work after it resumes. Its
//     contexts are cancelled a few milliseconds later, when the first timer fires. If only the wall clock has jumped,
//     because it was set or because a virtual machine was suspended, no timer fires. Contexts are then cancelled at
//     most RetryPeriod after the jump. In both cases, writes that this work sends are refused, because every write
//     checks both clocks.
//   - The Err method of a leader-gated runnable's context checks both clocks. So do the Err methods of contexts derived
//     from it with context.WithValue. A runnable that calls Err before each piece of work starts no work after the
//     deadline. Done does not check the clocks, and neither does a context with its own cancel function or timeout.
//     Such a context is cancelled only after a timer, a write or a call to an Err method that checks the clocks has
//     ended the term.
//   - The released lease contains the last writes as text of at most 64 KiB, which is enough for about 1,900 calls that
//     write one object. Older ones are left out, which is logged. It contains only writes of handler calls of the
//     engine: not those of other runnables, not those to a cluster with another address than that of the config passed
//     to New, and, in a fleet, not those of a shard whose number has changed together with the number of shards. If a
//     response arrives more than a quarter of a second after the runnables' context was cancelled, the next leader
//     reads the object once. If the previous leader has crashed, or has lost the lease, no write is waited for. A watch
//     has then had the rest of the lease's time to receive it: at least a tenth of LeaseDuration. In these cases, and
//     in those that the engine lists for D12, a handler can read the state before a write, and repeat the write.
//   - The guarantees hold while the clock rates of two machines differ by less than a tenth, and all replicas have the
//     same LeaseDuration.
//   - A runnable, or a handler, that ignores its context delays this replica's next term until it returns. Only the
//     fence prevents its writes.
//
// # Requirements
//
// The user that the config authenticates as needs the verbs get, create and update on leases (coordination.k8s.io) in
// the lease's namespace. RBAC cannot restrict create to a resourceName; it can restrict the other verbs. With shards,
// the user also needs the verbs list, watch and delete, and the Leases are those whose names begin with
// Options.LeaseName.
//
// The API server must answer requests for the lease in time. A request is cancelled after half of RenewDeadline; see
// [Options]. If the API server always takes longer, no replica ever leads.
package replica
