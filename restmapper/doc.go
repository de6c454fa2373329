// Package restmapper provides a REST mapper that is kept up to date by watches. It maps a kind as soon as the kind's
// CRD is established, and stops mapping it when the CRD is deleted. It makes no discovery requests for CRDs, and runs
// on every replica.
//
// A [Mapper] is a [k8s.io/apimachinery/pkg/api/meta.RESTMapper] that also resolves short names and expands categories.
// It watches CRDs, without storing their schemas. It reads all other types from aggregated discovery: when it starts,
// when an APIService changes, and when it polls every few minutes. A poll downloads the discovery documents only if
// they have changed.
//
// # Promises
//
//   - M1: A lookup reads an immutable snapshot with one atomic load. It takes no lock, makes no request, and allocates
//     only its result.
//   - M2: After the watch has delivered a change to a CRD, lookups reflect the change. No discovery request is made.
//     This includes changes to versions, names and scope, deletions, and CRDs that are recreated with another kind. A
//     CRD is mapped by its accepted names from the time it is established until it has been deleted. A CRD that is
//     being deleted is served, and therefore mapped, until its objects have been finalized. Built-in and aggregated
//     groups are read from discovery, version by version. If a version cannot be read, lookups continue to return the
//     last known results for it, [Mapper.Errors] lists the failure, and the version is read again separately. Other
//     versions are not affected. While the API server is unavailable, lookups return the last known results. The mapper
//     then recovers without a restart.
//   - M3: Lookups return the same results as client-go's ShortcutExpander on a NewDiscoveryRESTMapper, once discovery
//     has caught up. (Discovery lags behind the Established condition.) This includes priorities of groups, the order
//     of versions, guessed list kinds, lower-case kinds, prefixes of groups, and the kinds of errors. The exception is
//     a group whose discovery fails; see below. If several sources contain a version, the mapper uses the same source
//     as the API server: a version whose APIService does not belong to a CRD is read from discovery. [Mapper.Verbs]
//     returns the verbs in discovery.
//   - M4: [Mapper.WaitForMapping] returns as soon as a kind is served. [Mapper.Subscribe] reports each change in order.
//     Subscribers do not delay the mapper. If a subscriber is slow, changes to a kind are merged, and the newest
//     state is always delivered.
//
// # Lookups without a match
//
// A lookup without a match returns a NoMatch error only if the mapper has the data to rule out a match:
//
//   - Before the first sync, lookups return [ErrNotSynced].
//   - While the discovery of a version fails, lookups of a kind in this version, or in all versions of its group,
//     return an error that wraps a [k8s.io/client-go/discovery.ErrGroupDiscoveryFailed]. Its field Groups contains the
//     version and the reason. The same applies to [Mapper.Verbs].
//   - Lookups of a resource also expand short names in all versions of the group, and prefixes of groups. They return
//     this error while the discovery of any version fails in a group whose name begins with the given one.
//
// A version that has not been read yet counts as failing, and so does a version of CRDs after the permission to list
// CRDs was revoked. Lookups that do not specify a group return NoMatch errors, as in client-go.
//
// After [Mapper.Refresh] has returned nil, lookups reflect everything that the API server served when Refresh was
// called. The exception is a mapper without permissions; see below.
//
// # Limitations
//
//   - Lookups are only as current as the watches. If a connection hangs, lookups can return outdated results until the
//     hang is detected. While requests fail for other reasons than a missing permission, kinds that have been defined
//     in the meantime return NoMatch errors, and [Mapper.Errors] contains the failure. Some replicas of the API server
//     may not serve a mapped type yet. For a few milliseconds, it is possible that none of them serves it.
//   - Changes to the resources of an aggregated API cause no events. The next poll finds such changes; see
//     [WithPollPeriod]. [Mapper.Refresh] finds them immediately.
//   - A discovery document can be older than the data from the watches. After a watch has reported that a version was
//     removed, documents that still list the version are ignored for 30 seconds. If another API now serves the version,
//     the first poll after that time finds it.
//   - If several groups have the same short name, client-go chooses one at random when discovery is aggregated. This
//     package chooses the group with the highest priority. If a name is the plural of one resource and the singular of
//     another in the same version, client-go chooses one at random. This package chooses the plural.
//   - Groups that do not belong to CRDs precede those of CRDs if APIServices cannot be listed, or if the API server has
//     none because it is not a kube-apiserver.
//   - An API server without aggregated discovery is supported. Each version is then read separately in each poll.
//
// # Permissions
//
// The mapper lists and watches customresourcedefinitions in apiextensions.k8s.io and apiservices in
// apiregistration.k8s.io. It also reads the discovery paths /api and /apis, which every authenticated user can read by
// default. It never writes.
//
// The permissions to list and watch are optional. Without one of them, the mapper syncs without these objects after the
// requests have been refused for five seconds, because an API server that has just been started can refuse them for a
// moment. It then repeats the requests, and lists the failure in [Mapper.Errors]. If an API server does not have one of
// the types, the mapper syncs without it at once.
//
// Without CRDs, the mapper reads their types from discovery like all others. M2 and M4 do not hold for them. Polls find
// new types. They occur at least every 36 seconds, and [Mapper.Refresh] causes one immediately. When the permission is
// granted, the watch takes over without a restart. When it is revoked, and the watch has ended, CRDs that are known
// keep their last state, also if they are changed or deleted. Polls find the versions that no known CRD has.
package restmapper
