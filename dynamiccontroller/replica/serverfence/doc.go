// Package serverfence builds an admission policy that makes the API server reject writes of a replica that no longer
// holds its Lease.
//
// The fence of package replica is in the client: a write that was sent before the fence closed can take effect
// afterwards, for example if a proxy held it back, or if the process was suspended after it had checked the clocks.
// With the policy, the API server compares each write with the Lease. A write carries the Lease and the holder identity
// of its term as extra fields of its user, which the API server authenticates. replica.Replica.FenceOnServer returns a
// config whose writes carry them.
//
// The policy is optional, and no replacement for the fence in the client, which remains active. It admits late writes
// in these cases:
//
//   - The API server has not observed the new holder yet. It usually does so within milliseconds. For as long, it also
//     rejects writes of the new leader.
//   - The Lease does not exist, or has lost its label.
//   - The holder is the same process as before. If the number of shards has changed in between, the Lease of a shard
//     stands for other types than before.
//   - The write waits after the policy was evaluated, for example for a validating webhook.
//   - It is not subject to policies: requests through a proxy subresource, admission policies and their bindings, and
//     objects of an aggregated API whose server does not evaluate policies.
//   - It is a write of another user, such as the garbage collector.
//
// # Effects on other users
//
// The API server evaluates a condition of the policy for each Lease and each write of each user, so shards add to the
// latency of all writes in the cluster: about 0.03 ms for each shard. If the program writes only some resources, list
// them in Options.Resources, so that other writes are not affected. With more than 16 shards, this is required.
//
//   - Users who can create Leases in the namespace of the Lease can slow down the writes of all users. The namespace
//     should belong to the program.
//   - API servers watch the Leases of all namespaces, and reject the writes to which the MatchConstraints apply until
//     they have listed them. This also applies to servers of aggregated APIs that evaluate policies: if one of them may
//     not list and watch Leases, exclude its API group.
//
// # Permissions
//
// The user of the program needs the verb impersonate for itself and for the two extra fields. For a ServiceAccount,
// this is a rule in a Role in its namespace:
//
//	apiGroups: [""]
//	resources: [serviceaccounts]
//	resourceNames: [my-platform]
//	verbs: [impersonate]
//
// and one in a ClusterRole:
//
//	apiGroups: [authentication.k8s.io]
//	resources:
//	- userextras/fence.dynamic-controller.github.io/lease
//	- userextras/fence.dynamic-controller.github.io/holder
//	verbs: [impersonate]
//
// The API server then has only the name of the user, the two fields, and the groups of a ServiceAccount. The user's
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
// Delete neither the policy nor the binding, not even briefly: leave them in the cluster when the program is
// uninstalled. To switch the fence off, set the validationActions of the binding to Audit.
//
// The reason is a fault of kube-apiserver (kubernetes/kubernetes#130887, at least up to 1.37). When no policy with a
// binding has Leases as parameters, each API server stops watching them, and does not start again before it is
// restarted. A policy that is installed later compares writes with the Leases of that moment. It rejects all writes of
// the program as soon as another replica holds the Lease, and admits all if the Lease did not exist. [Probe] reports
// this as [ErrOutdated] and [ErrNotEnforced]. In Helm charts, the annotation helm.sh/resource-policy: keep prevents the
// deletion.
package serverfence
