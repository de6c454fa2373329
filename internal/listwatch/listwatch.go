package listwatch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
)

const (
	// DefaultListTimeout is the timeout of one page of a list, or of an entire streaming list. By default, an API
	// server gives up on a list after one minute.
	DefaultListTimeout = 2 * time.Minute

	// For a few milliseconds after a CRD has been established, the API server rejects watches with 429, because its watch
	// cache is not ready. Until a watch is opened, the first maxQuickRetries rejected watches of an attempt are retried.
	// The delay doubles after each retry, and stays below the reflector's own backoff. A rejection after
	// quickRetryPeriod has another cause, and is left to the reflector.
	maxQuickRetries  = 3
	quickRetryDelay  = time.Millisecond
	quickRetryPeriod = 50 * time.Millisecond
)

// Client lists and watches the objects of one type, in one namespace or in all namespaces. If it has the method
// IsWatchListSemanticsUnSupported, that method determines whether streaming lists are used.
type Client interface {
	List(ctx context.Context, options metav1.ListOptions) (runtime.Object, error)
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

// Config specifies which objects to request and where to report the results.
type Config struct {
	GVR           schema.GroupVersionResource
	LabelSelector string
	FieldSelector string

	// MinVersion returns the oldest resourceVersion that a list may have, or "" if any version is acceptable. It is
	// called before each list, from any goroutine.
	MinVersion func() string
	// ListError is called with the error from each failed list, and when a streaming list exceeds ListTimeout.
	ListError func(error)
	// WatchResult is called when a watch is opened or refused. A streaming list is reported only if it is refused with an
	// error that makes the reflector retry it. After any other error, the reflector falls back to a plain LIST request.
	//
	// Neither ListError nor WatchResult is called for a request whose context has ended.
	WatchResult func(error)
	// Relists is a relist limiter shared by several ListWatches; see NewRelistLimiter. If it is nil, the type is not
	// treated as a custom resource, and watches that were closed early are resumed without a relist.
	Relists *rate.Limiter
	// ListTimeout defaults to DefaultListTimeout.
	ListTimeout time.Duration
}

// ListWatch makes the requests for one reflector. Its methods must be called from the goroutine that runs the
// reflector. Only the reflector's list requests run in a separate goroutine.
type ListWatch struct {
	config     Config
	client     Client
	resumption *resumption

	attempt        context.Context // the context of the current attempt; ends the reflector's delays
	stream         watch.Interface // the newest watch
	endStream      func()          // cancels the context of a streaming list
	incomplete     int             // the number of streaming lists of this attempt that were opened but not completed
	retriesLeft    int             // the number of quick retries that this attempt has left
	streamTimer    *time.Timer     // limits the duration of a streaming list
	streaming      atomic.Bool     // the newest request was a streaming list
	streamTimedOut atomic.Bool     // the next streaming list is refused, so that a plain LIST request is sent

	mu     sync.Mutex // guards joined and calls to lists.Add
	joined bool
	lists  sync.WaitGroup
}

// New returns a ListWatch for a reflector.
func New(client Client, config Config) *ListWatch {
	if config.ListTimeout == 0 {
		config.ListTimeout = DefaultListTimeout
	}
	return &ListWatch{
		config: config, client: client, resumption: newResumption(config.GVR.Group, config.Relists), endStream: func() {},
	}
}

// Begin must be called before the first attempt, which is one call to the reflector's ListAndWatch. After Join, it must
// be called again before the next attempt.
func (l *ListWatch) Begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.joined = false
}

// BeginAttempt must be called before the reflector lists and watches. It must be passed the same context as the
// reflector.
func (l *ListWatch) BeginAttempt(ctx context.Context) {
	l.attempt = ctx
	l.incomplete, l.retriesLeft = 0, maxQuickRetries
	l.resumption.begin()
}

// Completed must be called when a complete list is in the store. It reports whether the list was a streaming list. The
// stream of such a list continues as a watch.
func (l *ListWatch) Completed() (watching bool) {
	l.stopStreamTimer()
	l.incomplete = 0
	return l.streaming.Load()
}

func (l *ListWatch) listWithin(
	ctx context.Context, timeout time.Duration, options metav1.ListOptions,
) (runtime.Object, error) {
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	list, err := l.client.List(limited, options)
	if err == nil {
		return list, nil
	}
	if ctx.Err() == nil {
		if limited.Err() != nil {
			err = fmt.Errorf("no response within %s: %w", timeout, err)
		}
		l.config.ListError(err)
	}
	return nil, err
}

// ListWithContext requests a page of a list. It is called by the reflector.
func (l *ListWatch) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	if !l.beginList() {
		return nil, context.Canceled
	}
	defer l.lists.Done()
	options.LabelSelector, options.FieldSelector = l.config.LabelSelector, l.config.FieldSelector
	isExact := options.ResourceVersionMatch == metav1.ResourceVersionMatchExact
	l.requireMinVersion(&options)
	list, err := l.listWithin(ctx, l.config.ListTimeout, options)
	// The reflector never asks for an exact version. However, the environment variable
	// KUBE_WATCHLIST_INCONSISTENCY_DETECTOR enables a consistency check in client-go. This check asks for an exact version
	// while a stream is open.
	if ctx.Err() == nil && !isExact {
		l.streaming.Store(false)
		l.resumption.listed()
	}
	return list, err
}

// requireMinVersion changes the options of a list, plain or streaming, so that its result is not older than MinVersion.
// A reflector's first list accepts any version. An API server whose watch cache lags behind could then return a state
// without some of the objects that the store already holds, and these objects would be reported as deleted. If the API
// server's etcd was restored from a backup and has lost the version, the request fails and the reflector asks for the
// most recent version.
func (l *ListWatch) requireMinVersion(options *metav1.ListOptions) {
	isAny, isPage := options.ResourceVersion == "0", options.Continue != ""
	isExact := options.ResourceVersionMatch == metav1.ResourceVersionMatchExact
	if isPage || isExact {
		return
	}
	oldest := l.config.MinVersion()
	if oldest == "" || options.ResourceVersion == "" {
		return
	}
	_, err := resourceversion.CompareResourceVersion(oldest, oldest)
	switch {
	case err != nil && isAny: // the versions have no order: read the most recent version
		options.ResourceVersion = ""
	case err == nil && (isAny || isNewer(oldest, options.ResourceVersion)):
		options.ResourceVersion, options.ResourceVersionMatch = oldest, metav1.ResourceVersionMatchNotOlderThan
		options.Limit = 0 // with a limit, the API server may read from etcd rather than from its watch cache
	}
}

// isNewer reports whether the version is newer than the other one. It returns false if the versions cannot be compared.
func isNewer(version, than string) bool {
	order, err := resourceversion.CompareResourceVersion(version, than)
	return err == nil && order > 0
}

// beginList registers a list, so that Join waits for it. It returns false if Join has been called. This is needed
// because the reflector lists in a separate goroutine, and does not wait for that goroutine when the context ends.
func (l *ListWatch) beginList() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.joined {
		l.lists.Add(1)
	}
	return !l.joined
}

var errNoStream = errors.New("the client returned neither a watch nor an error")

// maxIncomplete is the number of consecutive streaming lists that can end before they are complete. The reflector
// itself would repeat such a list immediately and without limit. After maxIncomplete of them, a plain LIST request is
// sent instead.
const maxIncomplete = 3

// WatchWithContext opens a watch. It is called by the reflector.
func (l *ListWatch) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	ended := time.Now()
	l.JoinStream()
	options.LabelSelector, options.FieldSelector = l.config.LabelSelector, l.config.FieldSelector
	streaming := ptr.Deref(options.SendInitialEvents, false)
	if streaming {
		if l.streamTimedOut.Swap(false) {
			return nil, l.streamTimeout(ctx)
		}
		if l.incomplete >= maxIncomplete {
			return nil, fmt.Errorf("streaming list: ended %d times before it was complete", l.incomplete)
		}
		l.requireMinVersion(&options)
	} else if err := l.resumption.check(&options, ended); err != nil {
		return nil, err
	}
	requested := time.Now()
	limited, inTime := ctx, func() bool { return true }
	if streaming {
		limited, inTime = l.limitStream(ctx)
	}
	stream, err := l.watch(limited, options)
	if !inTime() {
		l.stream = stream
		l.JoinStream()
		return nil, l.streamTimeout(ctx)
	}
	l.report(ctx, err, streaming)
	if err != nil {
		return nil, err
	}
	l.stream = stream
	l.streaming.Store(streaming)
	if streaming {
		l.incomplete++
		l.streamTimer = time.AfterFunc(l.config.ListTimeout-time.Since(requested), func() {
			l.streamTimedOut.Store(true)
			stream.Stop()
		})
	}
	l.resumption.watching(requested, options)
	return stream, nil
}

// limitStream returns the context for the stream of a streaming list. It is cancelled if the API server does not
// respond within ListTimeout, and by JoinStream. After the response, inTime must be called. It reports whether the
// response arrived in time. The request is not sent here, because each call on the way to it can double the size of the
// goroutine's stack.
func (l *ListWatch) limitStream(ctx context.Context) (limited context.Context, inTime func() bool) {
	limited, l.endStream = context.WithCancel(ctx)
	return limited, time.AfterFunc(l.config.ListTimeout, l.endStream).Stop
}

// streamTimeout returns the error from a streaming list that was not complete within ListTimeout, and reports it. The
// error makes the reflector fall back to a plain LIST request.
func (l *ListWatch) streamTimeout(ctx context.Context) error {
	err := fmt.Errorf("streaming list: not complete within %s", l.config.ListTimeout)
	if ctx.Err() == nil {
		l.config.ListError(err)
	}
	return err
}

func (l *ListWatch) watch(ctx context.Context, options metav1.ListOptions) (stream watch.Interface, err error) {
	began := time.Now()
	for delay := quickRetryDelay; ; delay *= 2 {
		stream, err = l.client.Watch(ctx, options)
		if !apierrors.IsTooManyRequests(err) || l.retriesLeft == 0 || time.Since(began) > quickRetryPeriod {
			break
		}
		l.retriesLeft--
		<-After(ctx, delay)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	if err == nil && stream == nil {
		return nil, errNoStream
	}
	if err == nil {
		l.retriesLeft = 0
	}
	return stream, err
}

func (l *ListWatch) report(ctx context.Context, err error, streaming bool) {
	retried := utilnet.IsConnectionRefused(err) || apierrors.IsTooManyRequests(err)
	if ctx.Err() == nil && (!streaming || err != nil && retried) {
		l.config.WatchResult(err)
	}
}

// Join waits until all requests have ended. The context of the requests must be cancelled before Join is called.
func (l *ListWatch) Join() {
	l.mu.Lock()
	l.joined = true
	l.mu.Unlock()
	l.JoinStream()
	l.lists.Wait()
}

// JoinStream stops the newest watch and waits until the goroutine that reads it has ended. Stop alone does not wait.
func (l *ListWatch) JoinStream() {
	l.stopStreamTimer()
	defer l.endStream()
	if l.stream == nil {
		return
	}
	l.stream.Stop()
	for range l.stream.ResultChan() { // until the channel is closed
	}
	l.stream = nil
}

func (l *ListWatch) stopStreamTimer() {
	if l.streamTimer != nil {
		l.streamTimer.Stop()
		l.streamTimer = nil
	}
}
