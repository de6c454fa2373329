// Package typewatch keeps one type's objects in memory and says what changed: a [cache.Reflector] on a store of its
// own, at about four goroutines a type where a shared informer takes ten, and keeping no more of an object than is
// asked for.
//
// A [Watch] can be run again and again. It keeps its store in between, so that what was deleted meanwhile is found by
// the difference to the next list. One goroutine changes the store and tells the [Sink]: what the sink hears of is in
// the store already, and in the order in which it happened.
package typewatch
