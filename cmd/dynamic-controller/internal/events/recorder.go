package events

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"os"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	typedv1 "k8s.io/client-go/kubernetes/typed/events/v1"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/identity"
)

// ReportingController is the reportingController field in all events from the platform.
const ReportingController = "platform.example.com/dynamic-controller"

const (
	// maxNote and maxInstance are the API server's limits, in bytes.
	maxNote     = 1024
	maxInstance = 128
	// maxNamePrefix leaves room for the hash in the name of an event.
	maxNamePrefix = 200
	// maxQueued is the maximum number of queued events.
	maxQueued = 1000
)

const (
	writeTimeout = 10 * time.Second
	// flushTimeout is the maximum time for writing the remaining events when Run ends.
	flushTimeout = 2 * time.Second
)

// Keys of log values.
const (
	keyObject = "object"
	keyReason = "reason"
	keyError  = "error"
)

// Event describes what happened to an object.
type Event struct {
	// Regarding is the object, with its apiVersion, kind and UID.
	Regarding *unstructured.Unstructured
	Reason    Reason
	// Note is the message for users. It is truncated to 1 KiB. Anyone who can read events in the object's namespace can
	// read it, so it must not reveal more than the object's conditions.
	Note string
	// Key distinguishes events with the same object and reason. While an event exists, no replica writes a second event
	// with the same object, reason and key. By default, all events are distinct. Optional.
	Key string
}

// Recorder writes events. It is safe for concurrent use.
type Recorder struct {
	log      logr.Logger
	client   typedv1.EventsGetter
	limits   *limits
	instance string // identifies the replica
	queue    chan *eventsv1.Event
	recorded atomic.Uint64
	denied   atomic.Bool // whether a missing permission has been logged
}

// New returns a Recorder. The client must reject writes once this replica may no longer be the leader.
func New(log logr.Logger, client typedv1.EventsGetter) *Recorder {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return &Recorder{
		log: log, client: client, limits: newLimits(corev1.EventTypeNormal, corev1.EventTypeWarning),
		instance: cut(cmp.Or(os.Getenv("POD_NAME"), host), maxInstance), queue: make(chan *eventsv1.Event, maxQueued),
	}
}

// Record adds an event to the queue, or drops it if there are too many. It never blocks.
func (r *Recorder) Record(e Event) {
	if !r.limits.allow(e.Regarding.GetUID(), meanings[e.Reason].eventType) {
		r.dropped(e, "too many events")
		return
	}
	select {
	case r.queue <- r.newEvent(e):
	default:
		r.dropped(e, "the queue is full")
	}
}

func (r *Recorder) dropped(e Event, problem string) {
	r.log.V(1).Info("Event dropped", keyObject, e.Regarding.GetNamespace()+"/"+e.Regarding.GetName(), keyReason, e.Reason,
		"problem", problem)
}

// newEvent returns the Event to write. The API server requires Events about cluster-scoped objects to be in the
// namespace "default".
func (r *Recorder) newEvent(e Event) *eventsv1.Event {
	now, object := metav1.NowMicro(), e.Regarding
	key := cmp.Or(e.Key, fmt.Sprintf("%d %d", now.UnixNano(), r.recorded.Add(1)))
	hash := fnv.New64a()
	fmt.Fprintf(hash, "%s %s %s", object.GetUID(), e.Reason, key)
	prefix := strings.TrimRight(cut(object.GetName(), maxNamePrefix), "-.")
	return &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: cmp.Or(object.GetNamespace(), metav1.NamespaceDefault),
			Name:      fmt.Sprintf("%s.%016x", prefix, hash.Sum64()),
		},
		EventTime: now, ReportingController: ReportingController, ReportingInstance: r.instance,
		Action: meanings[e.Reason].action, Reason: string(e.Reason), Type: meanings[e.Reason].eventType,
		Note: cut(e.Note, maxNote),
		Regarding: corev1.ObjectReference{
			APIVersion: object.GetAPIVersion(), Kind: object.GetKind(), Namespace: object.GetNamespace(),
			Name: object.GetName(), UID: object.GetUID(), ResourceVersion: object.GetResourceVersion(),
		},
	}
}

// cut truncates a text to at most n bytes. A truncated text ends with an ellipsis.
func cut(text string, n int) string {
	const ellipsis = "..."
	text = strings.ToValidUTF8(text, "?")
	if len(text) <= n {
		return text
	}
	end := n - len(ellipsis)
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + ellipsis
}

// Run calls reconcile and returns its error. While reconcile is running, Run writes the recorded events in order. After
// reconcile has returned, Run spends at most two seconds writing the remaining events. Cancelling ctx does not cancel
// the writes, because reconciles that are still running can record events.
func (r *Recorder) Run(ctx context.Context, reconcile func(context.Context) error) error {
	writing, stop := context.WithCancel(context.WithoutCancel(ctx))
	reconciled, written := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(written)
		r.writeAll(writing, reconciled)
	}()
	defer func() {
		close(reconciled)
		timer := time.AfterFunc(flushTimeout, stop)
		<-written
		timer.Stop()
		stop()
	}()
	return reconcile(ctx)
}

// writeAll writes events until reconciled is closed and the queue is empty. Once ctx is cancelled, it drops the
// remaining events.
func (r *Recorder) writeAll(ctx context.Context, reconciled <-chan struct{}) {
	for {
		select {
		case e := <-r.queue:
			r.write(ctx, e)
			continue
		case <-reconciled:
		}
		for {
			select {
			case e := <-r.queue:
				r.write(ctx, e)
			default:
				return
			}
		}
	}
}

func (r *Recorder) write(ctx context.Context, e *eventsv1.Event) {
	if ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	_, err := r.client.Events(e.Namespace).Create(ctx, e, metav1.CreateOptions{})
	switch {
	case err == nil, apierrors.IsAlreadyExists(err):
	case identity.IsPermissionMissing(err) && !r.denied.Swap(true):
		r.log.Error(err, "Events cannot be written because of a missing permission")
	default:
		r.log.V(1).Info("Event not written", keyObject, e.Regarding.Namespace+"/"+e.Regarding.Name, keyReason, e.Reason,
			keyError, err.Error())
	}
}
