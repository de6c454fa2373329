package listwatch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/util/watchlist"
)

// Client lists and watches the objects of one type, in one namespace or in all namespaces. If it has the method
// IsWatchListSemanticsUnSupported, that method determines whether streaming lists are used.
type Client interface {
	List(ctx context.Context, options metav1.ListOptions) (runtime.Object, error)
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

var errNoStream = errors.New("the client returned neither a watch nor an error")

// clientRequests are the Requests of a client of client-go. Such a client can retry and wait inside client-go, which
// only the time limits of the Loop bound.
type clientRequests struct{ client Client }

// NewRequests returns Requests that call a client of client-go, or a fake of one.
func NewRequests(client Client) Requests { return clientRequests{client} }

func (r clientRequests) IsWatchListSemanticsUnSupported() bool {
	return watchlist.DoesClientNotSupportWatchListSemantics(r.client)
}

func (r clientRequests) List(
	ctx context.Context, options RequestOptions, item func(runtime.Object),
) (metav1.ListMeta, error) {
	// A rate limiter refuses at once what it cannot allow before a deadline. Without one, it would reserve a slot, and the
	// slots of cancelled requests would delay later ones.
	ctx, cancel := context.WithTimeout(ctx, listLimit+time.Second)
	defer cancel()
	list, err := r.client.List(ctx, options.ListOptions)
	if err != nil {
		return metav1.ListMeta{}, err
	}
	if u, ok := list.(*unstructured.UnstructuredList); ok && u.GetKind() != "" && !strings.HasSuffix(u.GetKind(), "List") {
		return metav1.ListMeta{}, fmt.Errorf("%w: got a %s instead of a list", ErrMalformed, u.GetKind())
	}
	m, err := meta.ListAccessor(list)
	if err != nil {
		return metav1.ListMeta{}, errors.Join(ErrMalformed, err)
	}
	// The items are copied so that one of them does not keep the others in memory.
	err = meta.EachListItemWithAlloc(list, func(object runtime.Object) error {
		item(object)
		return nil
	})
	return metav1.ListMeta{ResourceVersion: m.GetResourceVersion(), Continue: m.GetContinue()}, err
}

func (r clientRequests) Watch(ctx context.Context, options RequestOptions) (Stream, error) {
	w, err := r.client.Watch(ctx, options.ListOptions)
	if err == nil && w == nil {
		err = errNoStream
	}
	if err != nil {
		return nil, err
	}
	return NewStream(w), nil
}

// NewStream returns the Stream of a watch of client-go.
func NewStream(w watch.Interface) Stream { return clientStream{w} }

// clientStream is the Stream of a client of client-go.
type clientStream struct{ watch.Interface }

func (s clientStream) Next(ctx context.Context) (watch.Event, error) {
	select {
	case event, open := <-s.ResultChan():
		if !open {
			return watch.Event{}, io.EOF
		}
		return event, nil
	case <-ctx.Done():
		return watch.Event{}, ctx.Err()
	}
}

// Close waits until the goroutine that reads the response has ended. Stop alone does not wait.
func (s clientStream) Close() {
	s.Stop()
	if s.ResultChan() == nil {
		return
	}
	for range s.ResultChan() { // until the channel is closed
	}
}
