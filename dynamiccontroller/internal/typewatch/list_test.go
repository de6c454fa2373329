package typewatch

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"

	"github.com/dynamic-controller/engine/internal/listwatch"
)

// An unusable form of the object ns/a with another UID.
const unusableSuccessor = `"namespace":"ns","name":"a","uid":"new","resourceVersion":7`

// While a streaming list is being received, the usable form of an object must neither be replaced by an unusable one,
// nor stay in the list after a deletion.
func TestD3_ObjectBecomesUnusableInAStreamingList(t *testing.T) {
	type event struct {
		eventType apiwatch.EventType
		metadata  string // of the object; the object ns/a if it is empty
	}
	const added, modified, deleted = apiwatch.Added, apiwatch.Modified, apiwatch.Deleted
	for name, test := range map[string]struct {
		events          []event
		fails           bool // the last event is an error
		stored, skipped int
	}{
		"modified, identified by its name": {[]event{{added, ""}, {modified, unusableByKey}}, false, 1, 1},
		"modified, identified by its UID":  {[]event{{added, ""}, {modified, unusableByUID}}, false, 1, 1},
		"modified, not identified":         {[]event{{added, ""}, {modified, anonymous}}, false, 1, 1},
		"modified twice":                   {[]event{{modified, unusableByKey}, {modified, unusableByKey}}, false, 0, 1},
		"repaired":                         {[]event{{added, unusableByKey}, {modified, ""}}, false, 1, 0},
		"repaired, known by its UID":       {[]event{{added, unusableByUID}, {modified, ""}}, false, 1, 0},
		"recreated":                        {[]event{{added, ""}, {modified, unusableSuccessor}}, false, 0, 1},
		"deleted":                          {[]event{{added, ""}, {deleted, unusableByKey}}, false, 0, 0},
		"deleted, identified by its UID":   {[]event{{added, ""}, {deleted, unusableByUID}}, true, 0, 0},
		"deleted, not identified":          {[]event{{added, ""}, {deleted, anonymous}}, true, 0, 0},
		"deleted, with another UID":        {[]event{{added, ""}, {deleted, unusableSuccessor}}, true, 0, 0},
		"deleted, never usable":            {[]event{{added, unusableByKey}, {deleted, unusableByKey}}, true, 0, 0},
		"deleted, not in the list":         {[]event{{deleted, ""}}, false, 0, 0},
	} {
		for projection := Keys; projection <= Complete; projection++ {
			s, w := newTestWatch(projection)
			w.BeginList()
			var err error
			for _, e := range test.events {
				object := named(projection, "a", "1")
				if e.metadata != "" {
					object = item(projection, e.metadata)
				}
				err = w.Collect(apiwatch.Event{Type: e.eventType, Object: object})
			}
			if (err != nil) != test.fails {
				t.Errorf("projection %d, %s: error %v", projection, name, err)
			}
			if !test.fails {
				w.EndList(listwatch.ListResult{ResourceVersion: "9"}, noop)
			}
			if n, skipped := s.View().Store().Len(), s.View().Unusable().Objects; n != test.stored || skipped != test.skipped {
				t.Errorf("projection %d, %s: %d objects, %d unusable", projection, name, n, skipped)
			}
			w.endRun() // stops the timer
			closeAndWait(s)
		}
	}
}

// With a decoded client, the store finds out which objects cannot be used.
func TestD3_DecodedObjectBecomesUnusableInAStreamingList(t *testing.T) {
	nameless, notAnObject := object("", "9"), &metav1.Status{}
	nameless.UID = "uid-a"
	for _, unusable := range []runtime.Object{nameless, notAnObject} {
		s, w := newTestWatch(Metadata)
		w.BeginList()
		for _, e := range []apiwatch.Event{
			{Type: apiwatch.Added, Object: owned("a", "1")}, {Type: apiwatch.Modified, Object: unusable},
			{Type: apiwatch.Added, Object: owned("b", "2")}, {Type: apiwatch.Deleted, Object: owned("b", "3")},
			{Type: apiwatch.Deleted, Object: owned("c", "4")}, // not in the list, but identified
		} {
			if err := w.Collect(e); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Collect(apiwatch.Event{Type: apiwatch.Deleted, Object: unusable}); err == nil {
			t.Error("a deletion that cannot be identified is not an error")
		}
		w.EndList(listwatch.ListResult{ResourceVersion: "9"}, noop)
		if keys := s.View().Store().Keys(); fmt.Sprint(keys) != "[ns/a]" || s.View().Unusable().Objects != 1 {
			t.Errorf("keys %v, %+v", keys, s.View().Unusable())
		}
		w.endRun() // stops the timer
		closeAndWait(s)
	}
}
