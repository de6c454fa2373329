package fleet

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/leasename"
	"github.com/dynamic-controller/engine/internal/listwatch"
)

func lease(name, version, holder string, annotations map[string]string) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version, Annotations: annotations},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder},
	}
}

func memberOf(identity, version string, s State) *coordinationv1.Lease {
	return lease(leasename.Member("f", identity), version, identity, map[string]string{StateAnnotation: s.Encode()})
}

// list makes the view store a list of Leases.
func list(s *viewStore, leases ...*coordinationv1.Lease) {
	s.BeginList()
	for _, l := range leases {
		_ = s.Collect(watch.Event{Type: watch.Added, Object: l})
	}
	s.EndList(listwatch.ListResult{}, nil)
}

func TestView_ContainsWhatTheLeasesSay(t *testing.T) {
	changes := 0
	v := NewView("f", time.Minute, func() { changes++ })
	s := &viewStore{view: v}
	if v.Snapshot().Synced {
		t.Error("synced before the first list")
	}
	list(s,
		memberOf("b", "1", State{Shards: 8, Warm: []int{3, 1}}), memberOf("a", "1", State{Shards: 8}),
		lease("f-shard-2", "1", "a", nil), lease("f-shard-x", "1", "a", nil), lease("f-shard-02", "1", "a", nil),
		lease("f-plan", "1", "a", map[string]string{PlanAnnotation: "the plan"}), lease("other", "1", "a", nil),
		lease("f-member-0123456789abcdef", "1", "c", map[string]string{StateAnnotation: "{}"}), // not the name for c
		lease(leasename.Member("f", "d"), "1", "d", map[string]string{StateAnnotation: "{"}),
	)
	got := v.Snapshot()
	if !got.Synced || got.Plan != "the plan" || len(got.Holders) != 1 || got.Holders[2] != "a" || len(got.Members) != 2 ||
		got.Members[0].Identity != "a" || !slices.Equal(got.Members[1].State.Warm, []int{1, 3}) {
		t.Fatalf("got %+v", got)
	}
	if _, ok := got.Member("b"); !ok || changes == 0 {
		t.Errorf("member b: %t, changes: %d", ok, changes)
	}
	// A renewal changes nothing that matters.
	changes = 0
	_ = s.Apply(watch.Event{Type: watch.Modified, Object: memberOf("a", "2", State{Shards: 8})})
	_ = s.Apply(watch.Event{Type: watch.Modified, Object: lease("f-shard-2", "2", "a", nil)})
	if changes > 0 {
		t.Errorf("%d changes were reported for renewals", changes)
	}
	_ = s.Apply(watch.Event{Type: watch.Modified, Object: lease("f-shard-2", "3", "", nil)})
	_ = s.Apply(watch.Event{Type: watch.Deleted, Object: memberOf("a", "3", State{})})
	if changes != 2 {
		t.Errorf("%d changes were reported, want 2", changes)
	}
	list(s, lease("f-shard-4", "9", "b", nil)) // everything else was deleted during a gap
	got = v.Snapshot()
	if len(got.Members) != 0 || len(got.Holders) != 1 || got.Holders[4] != "b" || got.Plan != "" {
		t.Errorf("got %+v", got)
	}
}

func TestView_SilentMemberIsGoneUntilItReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := NewView("f", 3*time.Second, func() {})
		s := &viewStore{view: v}
		list(s, memberOf("a", "1", State{}), memberOf("b", "1", State{}))
		for i := range 4 {
			time.Sleep(time.Second)
			_ = s.Apply(watch.Event{Type: watch.Modified, Object: memberOf("a", strings.Repeat("2", i+1), State{})})
		}
		got := v.Snapshot()
		if len(got.Members) != 1 || got.Members[0].Identity != "a" || len(got.Gone) != 1 || got.Unchanged != 0 {
			t.Fatalf("got %+v", got)
		}
		time.Sleep(time.Second)
		if got := v.Snapshot(); got.Unchanged != time.Second {
			t.Errorf("unchanged for %s, want 1s", got.Unchanged)
		}
		_ = s.Apply(watch.Event{Type: watch.Modified, Object: memberOf("b", "3", State{})})
		if got := v.Snapshot(); len(got.Members) != 2 || len(got.Gone) != 0 || got.Unchanged != 0 {
			t.Errorf("got %+v", got)
		}
	})
}

func TestView_LeavingCountsAsAChangeOfTheMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := NewView("f", time.Minute, func() {})
		s := &viewStore{view: v}
		list(s, memberOf("a", "1", State{}))
		time.Sleep(10 * time.Second)
		_ = s.Apply(watch.Event{Type: watch.Modified, Object: memberOf("a", "2", State{Leaving: true})})
		if got := v.Snapshot(); got.Unchanged != 0 {
			t.Errorf("unchanged for %s, want 0", got.Unchanged)
		}
	})
}

func TestState_InvalidTextIsAnError(t *testing.T) {
	for name, text := range map[string]string{
		"not JSON": "{", "another type": `{"warm":"x"}`, "too long": `{"node":"` + strings.Repeat("x", maxState) + `"}`,
	} {
		if s, err := DecodeState(text); err == nil {
			t.Errorf("%s: got %+v", name, s)
		}
	}
}

func TestNames_FitIntoTheLimits(t *testing.T) {
	long := strings.Repeat("n", 253-leasename.MaxSuffix)
	for _, name := range []string{
		leasename.Shard(long, 255), leasename.Plan(long), leasename.Member(long, "any identity"),
	} {
		if len(name) > 253 {
			t.Errorf("a name has %d characters", len(name))
		}
	}
	if value := leasename.LabelValue(long); len(value) > 63 || value == leasename.LabelValue(long+"x") {
		t.Errorf("got the label value %q", value)
	}
	if leasename.LabelValue("short") != "short" {
		t.Error("a short name is changed")
	}
}
