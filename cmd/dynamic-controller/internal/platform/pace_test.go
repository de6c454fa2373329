package platform

import (
	"testing"
	"time"
)

func TestPace(t *testing.T) {
	now := time.Unix(1000, 0)
	var p pace
	for _, step := range []struct {
		name  string
		after time.Duration
		want  time.Duration
	}{
		{"a", 0, 0}, {"a", 0, time.Second}, {"b", 0, 0}, {"a", 400 * time.Millisecond, 600 * time.Millisecond},
		{"a", 600 * time.Millisecond, 0}, {"a", 0, time.Second},
	} {
		now = now.Add(step.after)
		if got := p.due(step.name, time.Second, now); got != step.want {
			t.Errorf("%+v: it is due in %v", step, got)
		}
	}
	p.forget("a")
	if got := p.due("a", time.Second, now); got != 0 {
		t.Errorf("what is forgotten is due in %v", got)
	}
}

func TestTheLongerAnEndTakesTheLessOftenItIsLookedAt(t *testing.T) {
	for elapsed, want := range map[time.Duration]time.Duration{
		-time.Minute: 250 * time.Millisecond, 0: 250 * time.Millisecond, time.Second: 250 * time.Millisecond,
		8 * time.Second: time.Second, 24 * time.Second: 3 * time.Second, time.Hour: 5 * time.Second,
	} {
		if got := endPoll(elapsed); got != want {
			t.Errorf("after %v it is looked at every %v, want %v", elapsed, got, want)
		}
	}
}
