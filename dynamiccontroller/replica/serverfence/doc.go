// Package serverfence builds an admission policy that makes the API server reject writes of a replica that no longer
// holds its Lease.
//
// The fence of package replica is in the client: a write that was sent before the fence closed can take effect
// afterwards, for example if a proxy held it back, or if the process was suspended after it had checked the clocks.
// With the policy, the API server compares each write with the Lease. A write carries the Lease and the holder identity
// of its term as extra fields of its user, which the API server authenticates. replica.Replica.FenceOnServer returns a
// config whose writes carry them.
//
// The policy is optional, and no replacement for the fence in the client, which remains active:
//
//   - Each API server learns of a new holder through a watch, so it admits late writes, and rejects those of the new
//     leader, for some milliseconds.
//   - It admits all writes while the Lease does not exist.
//   - It compares the holder. A write of an earlier term is admitted if the same process leads again.
//   - Policies are evaluated before webhooks, so a write that waits for a webhook can take effect later.
//   - It does not apply to reads, to requests through a proxy subresource, or to the writes of other users, such as
//     those of the garbage collector.
//
// The API server evaluates a condition of the policy for each Lease and each write of each user, so shards add to the
// latency of all writes in the cluster: about 0.03 ms for each shard. If the program writes only some resources,
// restrict the MatchConstraints of the policy that [Objects] returns to them, so that other writes are not affected.
//
// # Permissions
//
// The user of the program needs the verb impersonate for itself and for the two extra fields. For a ServiceAccount,
// this is a rule in a Role in its namespace:
//
//   - apiGroups: [""]
//     resources: [serviceaccounts]
//     resourceNames: [my-platform]
//     verbs: [impersonate]
//
// and one in a ClusterRole:
//
//   - apiGroups: [authentication.k8s.io]
//     resources:
//   - userextras/fence.dynamic-controller.github.io/lease
//   - userextras/fence.dynamic-controller.github.io/holder
//     verbs: [impersonate]
//
// The API server then knows only the name of the user, the two fields, and the groups of a ServiceAccount. The user's
// UID and its other extra fields, such as the name of its Pod, are not passed on to other policies and webhooks. The
// permissions of a user must not depend on groups, unless it is a ServiceAccount or the config impersonates the groups.
//
// # Installation
//
// Roll out replicas whose writes carry the fields first, and then create the policy. All writes of the user must go
// through FenceOnServer, except those of Leases and Events, and access reviews. A program that runs without leader
// election cannot write. Use [Probe] to check that an API server enforces the policy.
//
// # Removal
//
// Do not delete the binding, also not for a moment: leave the policy and the binding in the cluster when the program is
// uninstalled. To switch the fence off, set the validationActions of the binding to Audit.
//
// The reason is a fault of kube-apiserver (kubernetes/kubernetes#130887, at least up to 1.37). When the last binding
// that has Leases as parameters has been gone for a second, each API server stops to watch them, and does not start
// again before it is restarted. A policy that is installed later compares writes with the Leases of that moment: it
// rejects all writes of the program if another replica holds the Lease by then, and admits all if the Lease did not
// exist. [Probe] reports both as [ErrOutdated] and [ErrNotEnforced]. In Helm charts, the annotation
// helm.sh/resource-policy: keep prevents the deletion.
package serverfence
