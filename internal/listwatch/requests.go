package listwatch

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// Requests sends the requests of a Loop, for the objects of one type in one namespace or in all namespaces. It must not
// retry a request, and it must not wait as a Retry-After header asks. Instead, it returns the header as part of the
// error; see apierrors.SuggestsClientDelay.
//
// If the implementation has the method IsWatchListSemanticsUnSupported, that method determines whether streaming lists
// are used. If it has the method Throttle(context.Context) error, that method is called before each list and returns
// when the list may be sent.
type Requests interface {
	// List requests a list, or a page of it, and calls item for each object as it arrives.
	List(ctx context.Context, options RequestOptions, item func(runtime.Object)) (metav1.ListMeta, error)
	// Watch requests a watch, and returns when the response headers have arrived.
	Watch(ctx context.Context, options RequestOptions) (Stream, error)
}

// RequestOptions are the options of a request.
type RequestOptions struct {
	metav1.ListOptions
	JSON bool // do not ask for protobuf
	// Answered, if not nil, can be called once the headers of the response to a list have arrived, also more than once. If
	// it is not called, the request counts as unanswered until List returns.
	Answered func()
}

// Stream is an open watch. Its methods are called by one goroutine.
type Stream interface {
	// Next returns the next event. An event of type ERROR carries a *metav1.Status. Next returns io.EOF when the server
	// has ended the watch, io.ErrUnexpectedEOF when the connection was lost, and an error that wraps ErrMalformed if no
	// further event can be read.
	Next(ctx context.Context) (watch.Event, error)
	// Close ends the watch and waits until its goroutines have ended.
	Close()
}

// ListResult describes a complete list.
type ListResult struct {
	ResourceVersion string
	// WentBack reports that the list has the most recent version, and that this version is older than one that was seen
	// before. The versions of the list therefore belong to another history: the server's storage has been restored from a
	// backup.
	WentBack bool
}

// Store receives the objects of a Loop. Its methods are called by the goroutine of Loop.Run, one at a time.
//
// A Loop passes on each object, whether it has the expected type, a name or any metadata or not. The store decides
// which objects it can use. An object that it cannot use must not look deleted.
type Store interface {
	// MinVersion returns the oldest resourceVersion that the next list may have, or "" if any version is acceptable. It is
	// called once for each list, also if the list is of the most recent version.
	MinVersion() string
	// BeginList is called before a list. The items of an earlier list that was not completed are dropped.
	BeginList()
	// Collect adds an item to the list. Between the items of a streaming list, changes to them can arrive. If Collect
	// returns an error, the list would be wrong. It is not completed, and a plain list is requested.
	Collect(watch.Event) error
	// EndList replaces the objects with the collected items. It calls stored when the objects are in the store, before it
	// notifies anyone.
	EndList(list ListResult, stored func())
	// Apply stores a change: an event of type ADDED, MODIFIED, DELETED or BOOKMARK. If it returns an error, only a list
	// can show what has changed. The watch ends, and a plain list is requested.
	Apply(watch.Event) error
	// Clear removes all objects, because the type is gone.
	Clear()
}
