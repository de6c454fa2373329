package fleet

// Keys of log values. They are those of package replica.
const (
	keyName   = "name" // of a Lease
	keyError  = "error"
	keyShards = "shards"
	keyMember = "member"
	keyShard  = "shard"
	keyReason = "reason"
)
