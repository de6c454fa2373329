package uninstall

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// The timeout restarts when the number of objects decreases.
func TestWaitGone_FailsWithoutProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout, each = time.Minute, 50 * time.Second
		u := &uninstaller{Options: Options{Timeout: timeout, Out: io.Discard}}
		began, polls := time.Now(), 0
		err := u.waitGone(t.Context(), "instances", func(context.Context) (int, string, error) {
			polls++
			return max(4-int(time.Since(began)/each), 1), "a", nil
		})
		if !errors.Is(err, ErrIncomplete) || strings.Contains(err.Error(), "finalizer") {
			t.Errorf("got error %v", err)
		}
		if took := time.Since(began); took < 3*each+timeout || took > 3*each+timeout+10*time.Second {
			t.Errorf("returned after %s", took)
		}
		if polls > 80 {
			t.Errorf("polled %d times", polls)
		}
	})
}

func TestWaitGone_NamesFinalizers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &uninstaller{Options: Options{Timeout: time.Second, Out: io.Discard}}
		err := u.waitGone(t.Context(), "instances", func(context.Context) (int, string, error) {
			return 1, "a" + blockedByOthers([]string{"example.com/hold"}), nil
		})
		if err == nil || !strings.Contains(err.Error(), "remove the finalizers of other controllers") {
			t.Errorf("got error %v", err)
		}
	})
}
