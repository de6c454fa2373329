package instances

import (
	"slices"
	"testing"
	"time"
)

func TestOutlived_ReportsOnceAfterADelay(t *testing.T) {
	o, now := &outlived{}, time.Now()
	for _, step := range []struct {
		after  time.Duration
		report bool
		wait   time.Duration
	}{
		{0, false, outlivedAfter},
		{time.Second, false, outlivedAfter - time.Second},
		{outlivedAfter, true, 0},
		{2 * outlivedAfter, false, 0},
	} {
		if report, wait := o.add("shop/a", now.Add(step.after)); report != step.report || wait != step.wait {
			t.Errorf("after %s: got %t, %s, want %t, %s", step.after, report, wait, step.report, step.wait)
		}
	}
	o.add("shop/b", now)
	if got := o.reported(); !slices.Equal(got, []string{"shop/a"}) {
		t.Errorf("got the reported instances %v", got)
	}
	o.forget("shop/a")
	if report, wait := o.add("shop/a", now); report || wait != outlivedAfter {
		t.Errorf("a forgotten instance: got %t, %s", report, wait)
	}
}
