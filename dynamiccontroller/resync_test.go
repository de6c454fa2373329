package dynamiccontroller_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// parkSome parks a tenth of the objects. Parked objects are in the cache and also have a record.
func parkSome(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
	if strings.HasSuffix(id.Name(), "0") {
		return dynamiccontroller.Terminal(errOnPurpose)
	}
	return nil
}

// Each object is resynced about once per period, and the resyncs are spread over the period.
func TestResync_IsSpreadOverThePeriod(t *testing.T) {
	const objects, period, periods = 640, time.Hour, 5
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: period})
		gvr := f.types[0]
		for i := range objects {
			f.put(gvr, fmt.Sprintf("w%d", i))
		}
		c := newCalls(parkSome)
		f.serve(gvr, c.handle)
		stop := f.run()
		began := time.Now()
		f.client.ClearActions()
		time.Sleep(periods*period + time.Minute)
		synctest.Wait()
		requests := slices.DeleteFunc(f.client.Actions(), func(action clienttesting.Action) bool {
			return action.GetVerb() == "watch" // the fake does not end a watch at its timeout, so that it is opened again
		})
		if len(requests) != 0 {
			t.Errorf("the resyncs sent the requests %v, want none", requests)
		}
		perTenth := make([]int, periods*10+1)
		for name, at := range c.at {
			if n := len(at) - 1; n < periods || n > periods+1 {
				t.Errorf("%s was resynced %d times in %d periods, want one resync per period", name, n, periods)
			}
			for i, resync := range at[1:] {
				perTenth[int(resync.Sub(began)/(period/10))]++
				if gap := resync.Sub(at[i]); i > 0 && (gap < period*9/10 || gap > period*11/10) {
					t.Errorf("%s was resynced again after %s, want about %s", name, gap, period)
				}
			}
		}
		for i, n := range perTenth[:periods*10] {
			if n < objects/20 || n > objects/5 {
				t.Errorf("%d resyncs in tenth %d, want about %d", n, i, objects/10)
			}
		}
		stop()
	})
}
