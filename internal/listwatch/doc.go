// Package listwatch keeps a store in sync with the objects of one type in the API server. It is used by the engine and
// by the REST mapper.
//
// A [Loop] sends one request at a time: a list, a streaming list or a watch. The only exception is a list that checks
// what a resumed watch may have missed; see [RelistStore]. The way a request ended is its outcome. The table in
// rules.go maps each outcome to the next request, its delay and the phase of the type. It is the only place where this
// is decided, and nothing else repeats a request. docs/architecture.md has the table in words, and
// docs/adr/0007-list-watch-loop.md the reasons.
//
//	Run ──▶ send ──▶ outcome ──▶ memory.decide ──▶ step ──▶ wait ──▶ send ...
//	         │                        └─ rules         └──▶ health ──▶ State
//	         └──▶ Requests ──▶ Stream ──▶ Store
//
// [Requests] sends the requests, and decodes the objects. [NewRequests] adapts a client of client-go. Time limits are
// timers that cancel a request with a cause, and need no goroutine. A Loop uses the goroutine that calls Run. Only a
// list next to an open watch (relist.go) has a goroutine of its own, and only while it is due. The delays and limits
// follow package time, so that tests can run in a synctest bubble.
package listwatch
