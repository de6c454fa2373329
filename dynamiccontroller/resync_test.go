package dynamiccontroller_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// Each object is resynced about once a period, and the resyncs are spread over it.
func TestResyncsAreSpreadOverThePeriod(t *testing.T) {
	const objects, period, periods = 640, time.Hour, 5
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: period})
		gvr := w.types[0]
		for i := range objects {
			w.put(gvr, fmt.Sprintf("w%d", i))
		}
		c := newCalls(func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return nil })
		w.serve(gvr, c.handle)
		stop := w.run()
		began := time.Now()
		w.client.ClearActions()
		time.Sleep(periods*period + time.Minute)
		synctest.Wait()
		if actions := w.client.Actions(); len(actions) != 0 {
			t.Errorf("requests were made: %v", actions)
		}
		perTenth := make([]int, periods*10+1)
		for name, at := range c.at {
			if n := len(at) - 1; n < periods || n > periods+1 {
				t.Errorf("%s was resynced %d times in %d periods", name, n, periods)
			}
			for i, at := range at[1:] {
				perTenth[int(at.Sub(began)/(period/10))]++
				if i > 0 {
					if gap := at.Sub(c.at[name][i]); gap < period*9/10 || gap > period*11/10 {
						t.Errorf("%s was resynced after %s", name, gap)
					}
				}
			}
		}
		for i, n := range perTenth[:periods*10] {
			if n < objects/20 || n > objects/5 {
				t.Errorf("%d resyncs in tenth %d, want about %d", n, i, objects/10)
			}
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
