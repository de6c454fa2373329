package fleet

import (
	"testing"
	"time"
)

func TestChanges_ProcessesThatEndSoonFlapForAGrowingTime(t *testing.T) {
	const settle = 30 * time.Second
	start := time.Unix(1000, 0)
	c := changes{settle: settle, flaps: map[string]flaps{}, left: start}
	now := start
	live := func(name string, age time.Duration) {
		since := now
		now = now.Add(age)
		c.leave(name, since, now)
	}
	want := func(name string, penalty time.Duration) {
		t.Helper()
		if penalty > 0 && !c.isFlapping(name, penalty-1) || c.isFlapping(name, penalty) {
			t.Errorf("%s does not flap for %s", name, penalty)
		}
	}
	live("pod-1_x", time.Second)
	want("pod-1_y", 0)
	if !c.left.Equal(now) {
		t.Error("the first end of a process does not count as a departure")
	}
	live("pod-1_y", settle-1)
	want("pod-1_z", settle)
	want("pod-2_z", 0)
	left := c.left
	for _, penalty := range []time.Duration{2 * settle, 4 * settle, 8 * settle, 16 * settle, 16 * settle} {
		live("pod-1_z", time.Second)
		want("pod-1_z", penalty)
	}
	if !c.left.Equal(left) || !c.last.Equal(now) {
		t.Error("the end of a flapping process counts as a departure")
	}
	live("pod-1_z", 2*settle) // less than its penalty
	want("pod-1_z", 16*settle)
	live("pod-1_z", 16*settle)
	want("pod-1_z", 0)
	if !c.left.Equal(now) {
		t.Error("the end of a process that no longer flaps does not count as a departure")
	}
}

func TestChanges_ForgetProcessesThatNoLongerExist(t *testing.T) {
	const settle = 30 * time.Second
	now := time.Unix(1000, 0)
	c := changes{settle: settle, flaps: map[string]flaps{}}
	c.leave("a_1", now, now)
	c.leave("a_2", now, now)
	now = now.Add(17*settle + 1)
	c.leave("b_1", now.Add(-time.Hour), now)
	if len(c.flaps) != 0 {
		t.Errorf("still known: %v", c.flaps)
	}
}

func TestProcessOf(t *testing.T) {
	for identity, want := range map[string]string{"pod_1": "pod", "a_b_1": "a_b", "pod": "pod"} {
		if got := processOf(identity); got != want {
			t.Errorf("%s: got %s, want %s", identity, got, want)
		}
	}
}
