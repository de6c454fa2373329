// Package election decides how one replica takes part in the election with one Lease: when it reads and writes the
// Lease, what it writes, and when its term begins and ends. It sends no requests, starts no goroutines and reads no
// clocks. A [Machine] receives the time and the answers to requests, and returns one operation at a time:
//
//	for {
//		op := machine.Next(now)
//		switch op.Kind {
//		case election.Wait:  // until op.Until, or until there is another input
//		case election.Read:  // send the request, then
//			machine.Answer(op, election.Answer{Sent: sent, Outcome: outcome, Record: record}, now)
//		case election.Begin: // open the fence and start the runnables
//		...
//		}
//	}
//
// The states of a Machine:
//
//	            the Lease is free or has expired:
//	            write it --> [Confirming] --> allowed
//	Candidate -------------------------------------------> Leading ------> Over
//	  |   ^  ^                   |                            |    loss      ^
//	  |   |  '--- Returning <----' refused                    | Leave        |
//	  |   |       (releases it)                               v              | released, or
//	  |   '- its previous holder -.                        Releasing --------' left to expire
//	  |      cannot lead any more |
//	  '- it is missing, and has --> Claiming
//	     existed: create it        (holds the Lease, or tries to)
//
// The state in brackets exists for the Lease of a shard only. If its confirmation takes too long, the replica is a
// Candidate again, and so is one that claims a Lease which another replica has acquired.
//
// A campaign is the time from [New], or from [Machine.Campaign], until the state is Over. [Machine.Leave] ends it in
// every state.
//
// # Why two replicas do not lead at the same time
//
// All replicas of a Lease have the same LeaseDuration d, and the rates of their clocks differ by less than a tenth.
//
//  1. The API server accepts a write only if the Lease has not changed since the writer has read it. The writes of a
//     Lease are therefore ordered, and each one knows its predecessor.
//  2. A leader leads only while less than 9/10 d have passed since it sent its last confirmed write, by both of its
//     clocks; see [Validity]. No write takes effect before it was sent.
//  3. Another replica writes to a Lease that is held only when it has observed the same record for d or longer, by its
//     own clock. That record was written before the replica first observed it. By 2, its holder has stopped leading.
//  4. A Lease that was emptied is treated as held. One that is missing, and that has existed, is recreated, but its
//     creator does not lead before it has held the new Lease for d. The previous holder cannot have written since then.
//  5. A replica releases the Lease only when it does not lead any more, and only if the Lease names it. A record can be
//     recognized as released; a Lease that is held never looks like one.
//  6. A write without a response may have taken effect, or may do so later. The replica does not lead by it. When it
//     leaves, it reads the Lease, up to twice, and releases it if such a write has acquired it.
//
// Other electors with the same rules for records, such as that of client-go, can take part. Their terms are as safe as
// they are among themselves. RetryPeriod should then be at least a second, because client-go does not notice a renewal
// in the same second as the previous one.
package election
