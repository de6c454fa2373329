// Package listwatch makes the list and watch requests of a [cache.Reflector].
//
// Compared with a plain [cache.ListWatch], a [ListWatch]:
//
//   - never delivers a list that is older than the reflector's store,
//   - relists after a watch was closed early, because a change to a CRD's schema alters objects without events and
//     without new resourceVersions (the rate of these relists is limited),
//   - retries the watches that are rejected just after a CRD has been established,
//   - limits the time that a list request can take,
//   - reports how requests end, and
//   - can wait until the goroutines of its requests have ended.
//
// [RetryEarly] changes how client-go's REST client retries such requests.
package listwatch
