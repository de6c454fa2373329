package election

import (
	"testing"
	"time"
)

func TestRecord_HeldKeepsTheTimeOfTheAcquisition(t *testing.T) {
	start := time.Unix(1000, 0)
	now := start.Add(time.Minute)
	for name, test := range map[string]struct{ last, want Record }{
		"the first holder": {
			Record{Transitions: 3},
			Record{Holder: "a", Duration: time.Second, Acquired: now.Add(-time.Millisecond), Renewed: now, Transitions: 4},
		},
		"another holder": {
			Record{Holder: "b", Acquired: start, Transitions: 3},
			Record{Holder: "a", Duration: time.Second, Acquired: now.Add(-time.Millisecond), Renewed: now, Transitions: 4},
		},
		"the same holder": {
			Record{Holder: "a", Acquired: start, Transitions: 3},
			Record{Holder: "a", Duration: time.Second, Acquired: start, Renewed: now, Transitions: 3},
		},
	} {
		if got := test.last.held("a", time.Second, now); got != test.want {
			t.Errorf("%s: got %+v, want %+v", name, got, test.want)
		}
		if got := test.last.held("a", time.Second, now); got.IsReleased() {
			t.Errorf("%s: %+v counts as released", name, got)
		}
	}
}

func TestRecord_IsReleased(t *testing.T) {
	now := time.Unix(1000, 0)
	released := Record{Holder: "a", Duration: time.Minute, Acquired: now, Transitions: 3}.Released(now)
	if !released.IsReleased() || released.Transitions != 3 {
		t.Errorf("%+v is not released", released)
	}
	for name, change := range map[string]func(*Record){
		"holder":   func(r *Record) { r.Holder = "a" },
		"duration": func(r *Record) { r.Duration = 15 * time.Second },
		"times":    func(r *Record) { r.Renewed = r.Renewed.Add(time.Millisecond) },
	} {
		r := released
		if change(&r); r.IsReleased() {
			t.Errorf("with another %s, %+v counts as released", name, r)
		}
		if r.equal(released) || !r.equal(r) {
			t.Errorf("with another %s, equal is wrong", name)
		}
	}
	for _, r := range []Record{{Acquired: now}, {Transitions: 1}} {
		if r.equal(Record{}) {
			t.Errorf("%+v counts as equal", r)
		}
	}
}

func TestInstant_SinceUsesTheClockThatHasAdvancedFurther(t *testing.T) {
	start := time.Unix(1000, 0)
	at := func(mono, wall time.Duration) Instant { return Instant{start.Add(mono), start.Add(wall)} }
	for _, test := range []struct {
		now  Instant
		want time.Duration
	}{
		{at(time.Second, 2*time.Second), 2 * time.Second},
		{at(2*time.Second, time.Second), 2 * time.Second},
		{at(time.Second, -time.Hour), time.Second},
	} {
		if got := test.now.Since(at(0, 0)); got != test.want {
			t.Errorf("got %s, want %s", got, test.want)
		}
	}
}

func TestKinds_HaveNames(t *testing.T) {
	for k := Wait; k <= Stop; k++ {
		_ = k.String()
	}
	for s := Candidate; s <= Over; s++ {
		_ = s.String()
	}
}
