package instances

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestThrottle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var throttle Throttle
		for _, step := range []struct {
			name  string
			after time.Duration
			want  time.Duration
		}{
			{"a", 0, 0}, {"a", 0, time.Second}, {"b", 0, 0}, {"a", 400 * time.Millisecond, 600 * time.Millisecond},
			{"a", 600 * time.Millisecond, 0}, {"a", 0, time.Second},
		} {
			time.Sleep(step.after)
			if got := throttle.Wait(step.name, time.Second); got != step.want {
				t.Errorf("%+v: the remaining time is %v", step, got)
			}
		}
		throttle.Forget("a")
		if got := throttle.Wait("a", time.Second); got != 0 {
			t.Errorf("after Forget, the remaining time is %v", got)
		}
	})
}
