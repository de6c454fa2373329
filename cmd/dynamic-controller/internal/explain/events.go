package explain

import (
	"cmp"
	"slices"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/events"
)

const (
	// maxEvents is the number of events of the explained object in a report, and maxChildEvents that of each child.
	maxEvents      = 5
	maxChildEvents = 3
)

// Event is an event about the explained object or one of its children.
type Event struct {
	Age    string `json:"age"`
	Type   string `json:"type"`
	Reason string `json:"reason"`
	Object string `json:"object"`
	Note   string `json:"note"`

	at time.Time
}

// eventsOf returns the last events about an object and its descendants, oldest first.
func eventsOf(o *Object, now time.Time) (all []Event) {
	o.walk(func(each *Object) {
		most := maxChildEvents
		if each == o {
			most = maxEvents
		}
		for _, e := range each.Events[max(0, len(each.Events)-most):] {
			at := TimeOf(e)
			all = append(all, Event{
				Age: age(at, now), Type: e.Type, Reason: e.Reason, Object: each.Name(), Note: e.Note, at: at,
			})
		}
	})
	slices.SortStableFunc(all, func(a, b Event) int { return a.at.Compare(b.at) })
	return all
}

// TimeOf returns when an event was last observed. Events of the core API have no eventTime.
func TimeOf(e eventsv1.Event) time.Time {
	if e.Series != nil {
		return e.Series.LastObservedTime.Time
	}
	return cmp.Or(e.EventTime.Time, e.DeprecatedLastTimestamp.Time, e.CreationTimestamp.Time)
}

// lastParked returns when the platform last reported that it no longer retries the object. It returns the zero time if
// there is no such event. Events are only a hint: they expire, and anyone who can create events can forge them.
func lastParked(o *Object) time.Time {
	for _, e := range slices.Backward(o.Events) {
		if e.Reason == string(events.Parked) && e.ReportingController == events.ReportingController {
			return TimeOf(e)
		}
	}
	return time.Time{}
}

func age(since, now time.Time) string { return duration.HumanDuration(max(0, now.Sub(since))) }
