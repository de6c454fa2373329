package listwatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// client makes requests by calling its functions. A request whose function is nil succeeds.
type client struct {
	list  func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch func(context.Context, metav1.ListOptions) (watch.Interface, error)
}

func (c client) List(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	if c.list == nil {
		return &unstructured.UnstructuredList{}, nil
	}
	return c.list(ctx, o)
}

func (c client) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	if c.watch == nil {
		return watch.NewFake(), nil
	}
	return c.watch(ctx, o)
}

// emptyList returns a list function that counts its calls and returns an empty list.
func emptyList(calls *atomic.Int64) func(context.Context, metav1.ListOptions) (runtime.Object, error) {
	return func(context.Context, metav1.ListOptions) (runtime.Object, error) {
		calls.Add(1)
		list := &unstructured.UnstructuredList{}
		list.SetResourceVersion("1")
		return list, nil
	}
}

// results records what a ListWatch reports.
type results struct {
	listErrors   []error
	watchResults []error
}

func newTest(c client) (*ListWatch, *results) {
	r := &results{}
	return New(c, Config{
		GVR:           schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"},
		LabelSelector: "a=b", FieldSelector: "metadata.name=c",
		MinVersion:  func() string { return "" },
		ListError:   func(err error) { r.listErrors = append(r.listErrors, err) },
		WatchResult: func(err error) { r.watchResults = append(r.watchResults, err) },
		Relists:     NewRelistLimiter(),
	}), r
}

func TestRequireMinVersion(t *testing.T) {
	notOlderThan20 := metav1.ListOptions{
		ResourceVersion: "20", ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	}
	exactly9 := metav1.ListOptions{ResourceVersion: "9", ResourceVersionMatch: metav1.ResourceVersionMatchExact}
	for name, test := range map[string]struct {
		oldest   string
		in, want metav1.ListOptions
	}{
		"a first list for an empty store": {"",
			metav1.ListOptions{ResourceVersion: "0", Limit: 500}, metav1.ListOptions{ResourceVersion: "0", Limit: 500}},
		"a first list in a later term": {"20",
			metav1.ListOptions{ResourceVersion: "0", Limit: 500}, notOlderThan20},
		"a relist of an older version": {"20",
			metav1.ListOptions{ResourceVersion: "9"}, notOlderThan20},
		"a relist of a newer version": {"20",
			metav1.ListOptions{ResourceVersion: "21"}, metav1.ListOptions{ResourceVersion: "21"}},
		"the most recent version": {"20",
			metav1.ListOptions{Limit: 500}, metav1.ListOptions{Limit: 500}},
		"a page after the first": {"20",
			metav1.ListOptions{Continue: "c", Limit: 500}, metav1.ListOptions{Continue: "c", Limit: 500}},
		"an exact version": {"20",
			exactly9, exactly9},
		"a first list, after versions that cannot be compared": {"x",
			metav1.ListOptions{ResourceVersion: "0", Limit: 500}, metav1.ListOptions{Limit: 500}},
		"a relist, after versions that cannot be compared": {"x",
			metav1.ListOptions{ResourceVersion: "y"}, metav1.ListOptions{ResourceVersion: "y"}},
	} {
		t.Run(name, func(t *testing.T) {
			computed, depends := false, test.in.Continue == "" && test.in.ResourceVersionMatch == ""
			l := &ListWatch{config: Config{MinVersion: func() string { computed = true; return test.oldest }}}
			l.requireMinVersion(&test.in)
			if diff := cmp.Diff(test.want, test.in); diff != "" {
				t.Error(diff)
			}
			if computed != depends { // also for the most recent version, because the result is compared with MinVersion
				t.Errorf("MinVersion was called: %t", computed)
			}
		})
	}
}

// A streaming list that fails is followed by a plain list. The watch after that list does not resume the failed stream.
func TestWatchAfterAListIsNotAResumption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := newTest(client{})
		l.BeginAttempt(t.Context())
		plain := metav1.ListOptions{ResourceVersion: "0", TimeoutSeconds: ptr.To[int64](300)}
		streaming := plain
		streaming.SendInitialEvents = ptr.To(true)
		if _, err := l.WatchWithContext(t.Context(), streaming); err != nil {
			t.Fatal(err)
		}
		if _, err := l.ListWithContext(t.Context(), plain); err != nil {
			t.Fatal(err)
		}
		if l.Completed() {
			t.Error("a plain list is reported as a streaming list")
		}
		if _, err := l.WatchWithContext(t.Context(), plain); err != nil {
			t.Fatal(err)
		}
		if _, err := l.WatchWithContext(t.Context(), plain); !errors.Is(err, ErrRelist) {
			t.Errorf("got %v, want ErrRelist", err)
		}
		l.Join()
	})
}

func TestRequestsAreReported(t *testing.T) {
	refused, busy := errors.New("refused"), apierrors.NewTooManyRequests("later", 1)
	streaming := metav1.ListOptions{SendInitialEvents: ptr.To(true)}
	for name, test := range map[string]struct {
		options metav1.ListOptions
		err     error
		want    []error
	}{
		"a watch is opened":                       {metav1.ListOptions{}, nil, []error{nil}},
		"a watch is refused":                      {metav1.ListOptions{}, refused, []error{refused}},
		"a streaming list is opened":              {streaming, nil, nil},
		"a streaming list is refused":             {streaming, refused, nil},
		"a streaming list is refused and retried": {streaming, busy, []error{busy}},
	} {
		t.Run(name, func(t *testing.T) {
			l, results := newTest(client{watch: func(context.Context, metav1.ListOptions) (watch.Interface, error) {
				if test.err != nil {
					return nil, test.err
				}
				return watch.NewFake(), nil
			}})
			w, err := l.WatchWithContext(t.Context(), test.options)
			if !errors.Is(err, test.err) || (w == nil) == (err == nil) {
				t.Errorf("%v, %v", w, err)
			}
			if !slices.Equal(test.want, results.watchResults) {
				t.Errorf("reported %v, want %v", results.watchResults, test.want)
			}
			if test.err == nil && l.Completed() != (test.options.SendInitialEvents != nil) {
				t.Error("Completed does not report correctly whether the list was streamed")
			}
			l.Join()
		})
	}
}

func TestCancelledRequestsAreNotReported(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	l, results := newTest(client{
		list: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
			return nil, ctx.Err()
		},
		watch: func(ctx context.Context, _ metav1.ListOptions) (watch.Interface, error) { return nil, ctx.Err() },
	})
	_, listErr := l.ListWithContext(ctx, metav1.ListOptions{})
	_, watchErr := l.WatchWithContext(ctx, metav1.ListOptions{})
	if listErr == nil || watchErr == nil {
		t.Error("a request succeeded")
	}
	if len(results.listErrors)+len(results.watchResults) > 0 {
		t.Errorf("reported: %+v", results)
	}
	l.Join()
}

func TestNilWatchIsAnError(t *testing.T) {
	none := func(context.Context, metav1.ListOptions) (watch.Interface, error) { return nil, nil }
	l, results := newTest(client{watch: none})
	if _, err := l.WatchWithContext(t.Context(), metav1.ListOptions{}); err == nil || len(results.watchResults) != 1 {
		t.Errorf("%v, %+v", err, results)
	}
	l.Join()
}

// A list that is accepted but never answered fails after a timeout.
func TestListWithoutResponseTimesOut(t *testing.T) {
	unresponsive := client{list: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	synctest.Test(t, func(t *testing.T) {
		l, results := newTest(unresponsive)
		began := time.Now()
		_, err := l.ListWithContext(t.Context(), metav1.ListOptions{})
		if waited := time.Since(began); waited != DefaultListTimeout || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got error %v after %s, want a timeout after %s", err, waited, DefaultListTimeout)
		}
		text := "no response within " + DefaultListTimeout.String()
		if len(results.listErrors) != 1 || !strings.Contains(results.listErrors[0].Error(), text) {
			t.Errorf("reported: %v", results.listErrors)
		}
	})
}

// A streaming list that the server accepts but does not answer is followed by a plain list, whether or not the server
// sends the headers of the response.
func TestStreamingListWithoutResponseIsFollowedByAPlainList(t *testing.T) {
	for name, stream := range map[string]func(context.Context) (watch.Interface, error){
		"no events": func(context.Context) (watch.Interface, error) { return watch.NewFake(), nil },
		"no headers": func(ctx context.Context) (watch.Interface, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		},
		"headers too late": func(ctx context.Context) (watch.Interface, error) {
			<-ctx.Done()
			return watch.NewFake(), nil
		},
		"no events after late headers": func(context.Context) (watch.Interface, error) {
			time.Sleep(DefaultListTimeout - time.Second)
			return watch.NewFake(), nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testStreamingListWithoutResponse(t, stream) })
		})
	}
}

func testStreamingListWithoutResponse(t *testing.T, stream func(context.Context) (watch.Interface, error)) {
	var lists, streams atomic.Int64
	l, results := newTest(client{
		list: emptyList(&lists),
		watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			if ptr.Deref(o.SendInitialEvents, false) {
				streams.Add(1)
				return stream(ctx)
			}
			return watch.NewFake(), nil
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	reflector := l.NewReflector(logr.Discard(), "test", time.Second, store)
	ended := make(chan struct{})
	l.BeginAttempt(ctx)
	go func() {
		defer close(ended)
		if err := reflector.ListAndWatchWithContext(ctx); err != nil {
			t.Error(err)
		}
	}()
	time.Sleep(DefaultListTimeout - time.Nanosecond)
	if streams.Load() != 1 || lists.Load() != 0 {
		t.Errorf("before the timeout: %d streams, %d lists", streams.Load(), lists.Load())
	}
	time.Sleep(time.Second)
	if streams.Load() != 1 || lists.Load() != 1 {
		t.Errorf("after the timeout: %d streams, %d lists", streams.Load(), lists.Load())
	}
	cancel()
	<-ended
	l.Join()
	text := "not complete within " + DefaultListTimeout.String()
	if len(results.listErrors) != 1 || !strings.Contains(results.listErrors[0].Error(), text) {
		t.Errorf("reported: %v", results.listErrors)
	}
	if _, err := l.ListWithContext(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("a list was sent after Join")
	}
}

// The context of a streaming list is not cancelled while the stream continues as a watch. It is cancelled when the
// stream ends.
func TestContextOfStreamingListEndsWithItsStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var request context.Context
		l, _ := newTest(client{watch: func(ctx context.Context, _ metav1.ListOptions) (watch.Interface, error) {
			request = ctx
			return watch.NewFake(), nil
		}})
		if _, err := l.WatchWithContext(t.Context(), metav1.ListOptions{SendInitialEvents: ptr.To(true)}); err != nil {
			t.Fatal(err)
		}
		l.Completed()
		time.Sleep(2 * DefaultListTimeout)
		if request.Err() != nil {
			t.Errorf("the stream is open, but its context has ended: %v", request.Err())
		}
		l.JoinStream()
		if request.Err() == nil {
			t.Error("the stream has ended, but its context has not")
		}
	})
}

func TestSelectorsAreSent(t *testing.T) {
	var requests []metav1.ListOptions
	record := func(o metav1.ListOptions) { requests = append(requests, o) }
	l, _ := newTest(client{
		list: func(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
			record(o)
			return &unstructured.UnstructuredList{}, nil
		},
		watch: func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
			record(o)
			return watch.NewFake(), nil
		},
	})
	_, listErr := l.ListWithContext(t.Context(), metav1.ListOptions{})
	_, watchErr := l.WatchWithContext(t.Context(), metav1.ListOptions{})
	if err := errors.Join(listErr, watchErr); err != nil {
		t.Error(err)
	}
	selected := metav1.ListOptions{LabelSelector: "a=b", FieldSelector: "metadata.name=c"}
	if diff := cmp.Diff([]metav1.ListOptions{selected, selected}, requests); diff != "" {
		t.Error(diff)
	}
	l.Join()
}

// For a few milliseconds after a CRD has been established, watches are rejected with 429.
func TestRejectedWatchIsRetried(t *testing.T) {
	const total = 7 * quickRetryDelay // 1 + 2 + 4
	tooMany, forbidden := apierrors.NewTooManyRequests("initializing", 1), errors.New("forbidden")
	for name, test := range map[string]struct {
		rejections int
		err        error
		took       time.Duration // the duration of each rejected request
		watches    int
		waited     time.Duration
		opened     bool
	}{
		"accepted":                      {0, tooMany, 0, 1, 0, true},
		"rejected once":                 {1, tooMany, 0, 2, quickRetryDelay, true},
		"rejected until the last retry": {maxQuickRetries, tooMany, 0, 1 + maxQuickRetries, total, true},
		"rejected more often":           {maxQuickRetries + 1, tooMany, 0, 1 + maxQuickRetries, total, false},
		"rejected slowly":               {1, tooMany, 2 * quickRetryPeriod, 1, 2 * quickRetryPeriod, false},
		"another error":                 {1, forbidden, 0, 1, 0, false},
	} {
		for _, streaming := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, streaming: %t", name, streaming), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					watches := 0
					l, results := newTest(client{watch: func(context.Context, metav1.ListOptions) (watch.Interface, error) {
						if watches++; watches <= test.rejections {
							time.Sleep(test.took)
							return nil, test.err
						}
						return watch.NewFake(), nil
					}})
					defer l.Join()
					l.BeginAttempt(t.Context())
					began := time.Now()
					_, err := l.WatchWithContext(t.Context(), metav1.ListOptions{SendInitialEvents: &streaming})
					waited := time.Since(began)
					if (err == nil) != test.opened || watches != test.watches || waited != test.waited {
						t.Errorf("got error %v after %d watches and %s", err, watches, waited)
					}
					failed := slices.ContainsFunc(results.watchResults, func(err error) bool { return err != nil })
					if !streaming && failed == test.opened {
						t.Errorf("reported %v", results.watchResults)
					}
				})
			})
		}
	}
}

// Quick retries must not add to the load of an API server that rejects watches because it is overloaded, or that has
// been restarted.
func TestQuickRetriesAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		watches, accepted := 0, false
		l, _ := newTest(client{watch: func(context.Context, metav1.ListOptions) (watch.Interface, error) {
			if watches++; accepted {
				return watch.NewFake(), nil
			}
			return nil, apierrors.NewTooManyRequests("overloaded", 1)
		}})
		defer l.Join()
		open := func() (n int) {
			before := watches
			if _, err := l.WatchWithContext(t.Context(), metav1.ListOptions{}); apierrors.IsTooManyRequests(err) == accepted {
				t.Errorf("got error %v", err)
			}
			return watches - before
		}
		l.BeginAttempt(t.Context())
		got := []int{open(), open()}
		l.BeginAttempt(t.Context())
		accepted = true
		got = append(got, open())
		accepted = false
		l.resumption.listed() // the next watch does not resume the one that was opened
		got = append(got, open())
		if diff := cmp.Diff([]int{1 + maxQuickRetries, 1, 1, 1}, got); diff != "" {
			t.Error(diff)
		}
	})
}

func TestQuickRetryEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		watches := 0
		l, results := newTest(client{watch: func(context.Context, metav1.ListOptions) (watch.Interface, error) {
			watches++
			time.AfterFunc(quickRetryDelay/2, cancel)
			return nil, apierrors.NewTooManyRequests("initializing", 1)
		}})
		defer l.Join()
		l.BeginAttempt(ctx)
		began := time.Now()
		_, err := l.WatchWithContext(ctx, metav1.ListOptions{})
		if waited := time.Since(began); !errors.Is(err, context.Canceled) || watches != 1 || waited != quickRetryDelay/2 {
			t.Errorf("got error %v after %d watches and %s", err, watches, waited)
		}
		if len(results.watchResults) > 0 {
			t.Errorf("reported %v", results.watchResults)
		}
	})
}

func TestListOfExactVersionDoesNotReplaceStream(t *testing.T) {
	l, _ := newTest(client{})
	defer l.Join()
	streaming := true
	if _, err := l.WatchWithContext(t.Context(), metav1.ListOptions{SendInitialEvents: &streaming}); err != nil {
		t.Fatal(err)
	}
	exact := metav1.ListOptions{ResourceVersion: "7", ResourceVersionMatch: metav1.ResourceVersionMatchExact}
	if _, err := l.ListWithContext(t.Context(), exact); err != nil || !l.Completed() || !l.resumption.resumes.Load() {
		t.Errorf("the stream is no longer considered open; error: %v", err)
	}
}

// A streaming list whose stream ends before the list is complete is not repeated without limit.
func TestIncompleteStreamingListsAreFollowedByAPlainList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lists, streams atomic.Int64
		l, _ := newTest(client{
			list: emptyList(&lists),
			watch: func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
				if !ptr.Deref(o.SendInitialEvents, false) {
					return watch.NewFake(), nil
				}
				streams.Add(1)
				w := watch.NewFakeWithChanSize(1, false)
				w.Add(&unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "a"}}})
				w.Stop()
				return w, nil
			},
		})
		ctx, cancel := context.WithCancel(t.Context())
		l.Begin()
		l.BeginAttempt(ctx)
		store := cache.NewStore(cache.MetaNamespaceKeyFunc)
		reflector := l.NewReflector(logr.Discard(), "test", time.Second, store)
		time.AfterFunc(time.Second, cancel)
		if err := reflector.ListAndWatchWithContext(ctx); err != nil {
			t.Error(err)
		}
		l.Join()
		if streams.Load() != maxIncomplete || lists.Load() != 1 {
			t.Errorf("%d streams, %d lists", streams.Load(), lists.Load())
		}
	})
}
