package dynamiccontroller

import (
	"context"
	"fmt"
	"iter"
	"math"
	"math/bits"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/fairqueue"
)

// CauseKind is a kind of reason for which a handler is called.
type CauseKind uint16

const (
	// CauseInitialList means that the object, or one that leads to it through Owns, Watches or StartWatch, was listed when
	// a run or a watch began. The first call for each existing object in a run has this kind. A promotion is such a run.
	CauseInitialList CauseKind = 1 << iota
	// CauseEvent means that the object was created, changed or deleted.
	CauseEvent
	// CauseSecondaryEvent means that an object that leads to this one through Owns, Watches or StartWatch was created,
	// changed or deleted; see [Cause.Object].
	CauseSecondaryEvent
	// CauseResync means that objects are reconciled again, without an event: all objects of the type in the periodic
	// resync, or those that a lost state can affect; see [MapFunc] and [AfterLoss].
	CauseResync
	// CauseRetry means that the last call failed; see [Cause.Retry]. If an event leads to the retry before its backoff has
	// passed, the cause has both kinds.
	CauseRetry
	// CauseRequeue means that the last call returned RequeueAfter.
	CauseRequeue
	// CauseEnqueue means that Enqueue or EnqueueAfter was called.
	CauseEnqueue
	// CauseInterrupted means that an earlier call was interrupted, or did not begin because its run had ended. If the
	// object is in the cache when the next run begins, the cause is only CauseInitialList.
	CauseInterrupted
	// CauseReplaced means that StartServingGVK has replaced the handler or the options.
	CauseReplaced

	endOfCauseKinds
)

var causeKindNames = [...]string{
	"initial_list", "event", "secondary_event", "resync", "retry", "requeue", "enqueue", "interrupted", "replaced",
}

// String returns a name such as "initial_list". It is also used as a metric label.
func (k CauseKind) String() string {
	if k == 0 || k >= endOfCauseKinds || k&(k-1) != 0 {
		return fmt.Sprintf("CauseKind(%d)", uint16(k))
	}
	return causeKindNames[bits.TrailingZeros16(uint16(k))]
}

// Cause is why a handler was called; see [CauseOf]. If an object is added to the queue for several reasons before its
// handler is called, the cause has several kinds. It names only the first of several other objects.
type Cause struct {
	kinds  CauseKind
	retry  uint16
	others uint32
	object *ObjectIdentifiers
}

// CauseOf takes a handler's context, or one derived from it, and returns why the handler was called. For all other
// contexts, it returns the zero Cause.
//
// A cause is for logs, and for skipping work that only some causes need. It does not show what has changed: several
// changes can lead to one call, and the causes of objects that waited when a run ended are not kept. A handler must
// always bring its object to the desired state.
//
// If an object is reconciled before the delay of a retry, of a requeue or of EnqueueAfter has expired, the delay is
// cancelled, and the earlier call has its kind as well. With [KeepRequeues], the call after the delay has this kind.
func CauseOf(ctx context.Context) Cause {
	if r, ok := ctx.Value(runKey{}).(*run); ok {
		if made := callOf(ctx, r.core); made != nil {
			return made.cause
		}
	}
	return Cause{}
}

// Kinds returns the kinds of the cause, in the order of the constants.
func (c Cause) Kinds() iter.Seq[CauseKind] {
	return func(yield func(CauseKind) bool) {
		for kind := CauseKind(1); kind < endOfCauseKinds; kind <<= 1 {
			if c.kinds&kind != 0 && !yield(kind) {
				return
			}
		}
	}
}

// Has reports whether the cause is of the kind, among others.
func (c Cause) Has(kind CauseKind) bool { return c.kinds&kind != 0 }

// Retry returns how many calls for the object have failed in a row before this one. It is 0 after a success or a
// requeue, and for the first call after the object was parked.
func (c Cause) Retry() int { return int(c.retry) }

// Object returns the object whose event was the first one of kind CauseSecondaryEvent. It returns false if there was
// no such event.
func (c Cause) Object() (id ObjectIdentifiers, ok bool) {
	if c.object == nil {
		return ObjectIdentifiers{}, false
	}
	return *c.object, true
}

// Others returns the number of events of kind CauseSecondaryEvent of other objects than [Cause.Object].
func (c Cause) Others() int { return int(c.others) }

// String returns a text such as "event, secondary_event of configmaps.v1 default/a and 3 others, retry 2".
func (c Cause) String() string { return c.text(ObjectIdentifiers.String) }

// logText is like String, without the name of the other object, which readers of the log may not be allowed to know.
func (c Cause) logText() string {
	return c.text(func(id ObjectIdentifiers) string { return nameOf(id.GVR) })
}

func (c Cause) text(name func(ObjectIdentifiers) string) string {
	var parts []string
	for kind := range c.Kinds() {
		part := kind.String()
		switch {
		case kind == CauseSecondaryEvent && c.object != nil:
			part += " of " + name(*c.object)
			if c.others > 0 {
				part += fmt.Sprintf(" and %d others", c.others)
			}
		case kind == CauseRetry && c.retry > 0:
			part += fmt.Sprintf(" %d", c.retry)
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ", ")
}

// queueCause is a Cause before the call begins.
type queueCause = fairqueue.Cause[ObjectIdentifiers]

// because returns the cause of a kind.
func because(kind CauseKind) queueCause { return queueCause{Kinds: uint16(kind)} }

// becauseOf returns the cause of an event of a secondary object.
func becauseOf(gvr schema.GroupVersionResource, key string) queueCause {
	return queueCause{Kinds: uint16(CauseSecondaryEvent), First: &ObjectIdentifiers{NamespacedKey: key, GVR: gvr}}
}

// newCause returns the cause of a call that begins, after a number of failures. If kept is true, the object was left
// from an earlier run.
func newCause(queued queueCause, failures int, kept bool) Cause {
	c := Cause{
		kinds: CauseKind(queued.Kinds), retry: uint16(min(failures, math.MaxUint16)),
		others: queued.Others, object: queued.First,
	}
	if failures > 0 {
		c.kinds |= CauseRetry
	}
	if kept {
		c.kinds |= CauseInterrupted
	}
	return c
}
