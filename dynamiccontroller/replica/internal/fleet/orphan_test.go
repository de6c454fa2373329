package fleet

import (
	"testing"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/plan"
)

func TestSuccessor_IsTheSameForAllMembers(t *testing.T) {
	view := &Snapshot{Synced: true}
	for _, name := range []string{"a", "b", "c", "d"} {
		view.Members = append(view.Members, Member{Identity: name, State: State{Layout: 256}})
	}
	view.Members[1].State.Leaving = true
	view.Members[2].State.Layout = 8
	led := map[string]int{}
	for i := range 256 {
		led[view.successor(i, 256)]++
	}
	if led["a"] < 64 || led["d"] < 64 || len(led) != 2 {
		t.Errorf("led: %v", led)
	}
	if got := (&Snapshot{}).successor(0, 8); got != "" {
		t.Errorf("got %q without members", got)
	}
}

func TestIsOrphaned_OnlyIfNobodyIsAlive(t *testing.T) {
	view := &Snapshot{Synced: true, Members: []Member{
		{Identity: "a"}, {Identity: "leaving", State: State{Leaving: true}},
	}}
	for _, test := range []struct {
		leader, standby, holder string
		want                    bool
	}{
		{"a", "", "", false},
		{"", "a", "", false},
		{"", "", "a", false},
		{"gone", "leaving", "gone", true},
		{"", "", "", true},
	} {
		a := plan.Assignment{Leader: test.leader, Standby: test.standby}
		if got := view.isOrphaned(a, test.holder); got != test.want {
			t.Errorf("%+v: got %v", test, got)
		}
	}
	if (&Snapshot{}).isOrphaned(plan.Assignment{}, "") {
		t.Error("a shard is orphaned in a view that has not synced")
	}
}
