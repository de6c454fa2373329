package instances

import (
	"slices"
	"testing"
	"time"
)

func TestOutlived_WaitsAndReportsEachChildOncePerRun(t *testing.T) {
	o, now, run := &outlived{}, time.Now(), make(chan struct{})
	for _, step := range []struct{ after, wait time.Duration }{
		{0, outlivedAfter}, {time.Second, outlivedAfter - time.Second}, {outlivedAfter, 0}, {2 * outlivedAfter, 0},
	} {
		if wait := o.wait(run, "shop/a", now.Add(step.after)); wait != step.wait {
			t.Errorf("after %s: got %s, want %s", step.after, wait, step.wait)
		}
	}
	for _, step := range []struct{ found, unreported []string }{
		{[]string{"x"}, []string{"x"}}, {[]string{"x"}, nil}, {[]string{"x", "y"}, []string{"y"}},
	} {
		if got := o.add("shop/a", step.found); !slices.Equal(got, step.unreported) {
			t.Errorf("found %v: got %v, want %v", step.found, got, step.unreported)
		}
	}
	o.wait(run, "shop/b", now)
	if got := o.reported(); !slices.Equal(got["shop/a"], []string{"x", "y"}) || len(got["shop/b"]) > 0 {
		t.Errorf("got the reported children %v", got)
	}
	o.forget("shop/b")
	if got := o.add("shop/b", []string{"z"}); got != nil {
		t.Errorf("of an instance that exists again: got %v", got)
	}
	close(run)
	if got := o.reported(); len(got) > 0 {
		t.Errorf("after the run: got %v", got)
	}
	next := make(chan struct{})
	if wait := o.wait(next, "shop/a", now.Add(time.Hour)); wait != outlivedAfter {
		t.Errorf("in the next run: got %s", wait)
	}
	if got := o.add("shop/a", []string{"x"}); !slices.Equal(got, []string{"x"}) {
		t.Errorf("in the next run: got %v", got)
	}
}
