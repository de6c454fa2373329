package dynamiccontroller_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// watchErrorLog collects what the function of WithWatchErrors receives.
type watchErrorLog struct {
	mu  sync.Mutex // guards all
	all []dynamiccontroller.WatchError
}

func (l *watchErrorLog) add(e dynamiccontroller.WatchError) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, e)
}

// take returns what has been collected since the last call.
func (l *watchErrorLog) take() (texts []string) {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.all {
		texts = append(texts, fmt.Sprintf("%s [%s] [%s] [%s] %s", e.GVR.Resource, e.Namespaces, e.LabelSelector,
			e.FieldSelector, e.State))
	}
	slices.Sort(texts)
	l.all = nil
	return texts
}

func TestWithWatchErrors_ReportsFailuresOfAllWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reported := &watchErrorLog{}
		f := newFixture(t, 3, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1},
			dynamiccontroller.WithWatchErrors(func(e dynamiccontroller.WatchError) {
				if e.State == dynamiccontroller.TypeForbidden && !apierrors.IsForbidden(e.Err) {
					t.Errorf("the error of a forbidden watch is %v", e.Err)
				}
				reported.add(e)
			}))
		served, owned, watched := f.types[0], f.types[1], f.types[2]
		f.failLists(served, apierrors.NewForbidden(served.GroupResource(), "", errOnPurpose))
		f.failLists(owned, apierrors.NewNotFound(owned.GroupResource(), ""))
		f.failLists(watched, errOnPurpose)
		f.serve(served, succeed, dynamiccontroller.WithNamespaces("a", "b"), dynamiccontroller.Owns(owned,
			dynamiccontroller.WithLabelSelector(labels.SelectorFromSet(labels.Set{"x": "y"}))))
		startWatch(f, watched, toOwners(),
			dynamiccontroller.WithFieldSelector(fields.OneTermEqualSelector("metadata.name", "n")))
		if got := reported.take(); len(got) > 0 {
			t.Errorf("before the run, %q were reported", got)
		}
		stop := f.run()
		time.Sleep(5 * time.Minute)
		all := []string{
			"type0s [a,b] [] [] Forbidden", "type1s [] [x=y] [] NotFound", "type2s [] [] [metadata.name=n] Failing",
		}
		if got := reported.take(); !slices.Equal(got, all) {
			t.Errorf("%q were reported, want %q", got, all)
		}
		f.failLists(served, nil)
		time.Sleep(time.Minute)
		if state := f.status(served).State; state != dynamiccontroller.TypeSynced {
			t.Errorf("the state is %s", state)
		}
		stop()
		f.failLists(served, errOnPurpose)
		stop = f.run() // the failures of the earlier run do not count
		time.Sleep(time.Minute)
		all[0] = "type0s [a,b] [] [] Failing"
		if got := reported.take(); !slices.Equal(got, all) {
			t.Errorf("in the next run, %q were reported, want %q", got, all)
		}
		stop()
	})
}

// A function that hangs holds up neither the watches nor the end of the run.
func TestWithWatchErrors_MayHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		reported := &watchErrorLog{}
		f := newFixture(t, 3, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1},
			dynamiccontroller.WithWatchErrors(func(e dynamiccontroller.WatchError) {
				<-hang
				reported.add(e)
			}))
		stop := f.run()
		for _, gvr := range f.types { // the function hangs for the first type, whose list fails first
			f.failLists(gvr, errOnPurpose)
			f.serve(gvr, succeed)
			time.Sleep(time.Minute)
		}
		f.failLists(f.types[1], apierrors.NewNotFound(f.types[1].GroupResource(), ""))
		f.failLists(f.types[2], nil)
		time.Sleep(time.Minute)
		if state := f.status(f.types[2]).State; state != dynamiccontroller.TypeSynced {
			t.Errorf("while the function hangs, the state is %s", state)
		}
		close(hang)
		want := []string{"type0s [] [] [] Failing", "type1s [] [] [] NotFound", "type2s [] [] [] Failing"}
		if got := reported.take(); !slices.Equal(got, want) {
			t.Errorf("%q were reported, want %q", got, want)
		}
		stop()

		hang = make(chan struct{})
		stop = f.run()
		time.Sleep(time.Minute)
		stop()
		close(hang)
		synctest.Wait()
	})
}
