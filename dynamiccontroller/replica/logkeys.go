package replica

// Keys of log values.
const (
	keyLease    = "lease"
	keyIdentity = "identity"
	keyLeader   = "leader"
	keyTerm     = "term"
	keyRunning  = "running"
	keyCause    = "cause"
	keyError    = "error"
	keyAfter    = "after"
	keyVerb     = "verb"
	keyResource = "resource"
	keyShard    = "shard"
	keyShards   = "shards"
	keyMember   = "member"
	keyCalls    = "calls"
)
