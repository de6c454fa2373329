// Package restmapper is a REST mapper that watches: it knows a kind from the moment at which the API server has
// established its CRD, and forgets it with the CRD's deletion, on every replica and without asking discovery again.
//
// A [Mapper] is a [k8s.io/apimachinery/pkg/api/meta.RESTMapper] with short names, and expands categories. It watches
// CRDs, of which it keeps what mapping needs and never the schemas, and reads what does not come from CRDs from
// aggregated discovery: at its start, when an APIService changes, and every few minutes if the document has changed.
//
// # What it promises
//
//   - M1 A lookup reads an immutable snapshot through one atomic load: it takes no lock, makes no request, and allocates
//     what it returns and no more.
//   - M2 Once the watch has told of a CRD's change (established, its versions, names or scope, deleted, deleted and made
//     anew as something else) lookups answer accordingly, with no discovery request made for it. A CRD counts from
//     Established, by its accepted names, to its deletion; while it waits for its objects' finalizers it is still served,
//     and answered. Built-in and aggregated groups come from discovery, version by version: one that fails keeps its last
//     good answer, is in [Mapper.Errors], is tried again alone, and leaves the others as they are. The same holds if the
//     API server is lost: the last answers stay, and the mapper catches up by itself.
//   - M3 Answers are those of client-go's ShortcutExpander over NewDiscoveryRESTMapper once discovery has settled, which
//     trails behind Established: groups by priority, versions in Kubernetes' order, guessed list kinds, lower-case kinds,
//     groups given as prefixes, and the kinds of errors. What several sources claim belongs to whom the API server gives
//     it: a version with an APIService that does not come from CRDs is answered from discovery.
//   - M4 [Mapper.WaitForMapping] returns as soon as a kind is served, and [Mapper.Subscribe] tells of each change in
//     order, never keeps the mapper waiting, merges for a slow subscriber what happened to a kind, and never loses the
//     last state.
//
// Before it has synced for the first time, lookups return [ErrNotSynced], which is no NoMatch error.
//
// # What it does not promise
//
//   - It follows its watches, so that an answer is as old as they are: with a connection that hangs, until that is
//     noticed. A type that the mapper answers may not be served yet by each of several API servers, or for some
//     milliseconds by its own.
//   - What an aggregated API serves changes without any event, and is seen with the next poll ([WithPollPeriod]).
//   - Client-go gives a short name that several groups claim to any of them when its discovery is aggregated, since it
//     loses the order; here it is the first by priority. Of a full resource whose name is one resource's plural and
//     another's singular, client-go returns either; here the plural counts.
//   - Without access to APIServices (or without any, as in a server that is no kube-apiserver) groups that are no CRD's
//     go before those of CRDs.
//
// # What it needs
//
// To list and watch customresourcedefinitions in apiextensions.k8s.io, and apiservices in apiregistration.k8s.io (it goes
// without if that is forbidden or not found); and discovery, /api and /apis, which every authenticated user may read. It
// never writes.
package restmapper
