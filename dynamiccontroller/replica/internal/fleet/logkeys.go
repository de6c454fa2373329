package fleet

// Keys of log values. They are those of package replica.
const (
	keyLease  = "lease"
	keyError  = "error"
	keyShards = "shards"
	keyMember = "member"
)
