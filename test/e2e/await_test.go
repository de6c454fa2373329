package e2e

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/test/e2e/internal/history"
)

// events returns the events that have been logged so far.
func (f *fleet) events() []history.Event {
	f.Helper()
	events, err := f.reader.Events()
	f.noError(err)
	return events
}

// eventually polls until done returns nil. After the timeout, it fails the test.
func (f *fleet) eventually(condition string, done func() error) {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.Context(), timeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := done()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			f.Fatalf("timed out after %s waiting until %s: %v", timeout, condition, err)
		case <-tick.C:
		}
	}
}

// leader returns the running member that has reported itself as the leader in a term that started at or after since, or
// nil if no member has.
func (f *fleet) leader(since history.Time) *member {
	f.Helper()
	leads := map[string]history.Time{}
	for _, e := range f.events() {
		switch e.Kind {
		case history.Leads:
			leads[e.Process] = e.At
		case history.Lost, history.Led:
			delete(leads, e.Process)
		}
	}
	for _, m := range f.members {
		if at, ok := leads[m.processName()]; ok && at >= since && !m.paused && !m.process.hasExited() {
			return m
		}
	}
	return nil
}

// awaitLeader waits for a leader whose term started at or after since.
func (f *fleet) awaitLeader(since history.Time) *member {
	f.Helper()
	var m *member
	f.eventually("a replica leads", func() error {
		f.checkProcesses()
		if m = f.leader(since); m == nil {
			return errors.New("no leader")
		}
		return nil
	})
	return m
}

// checkProcesses fails the test if a process has exited with an error.
func (f *fleet) checkProcesses() {
	f.Helper()
	for _, m := range f.members {
		if m.process.hasExited() && m.process.err != nil && m.process.cmd.ProcessState.ExitCode() > 0 {
			f.Fatalf("%s exited: %v", m.processName(), m.process.err)
		}
	}
}

// awaitReconciles waits until a leader has reconciled an object in its term and all replicas have observed a lease. It
// then returns the leader. All replicas must observe a lease because a new replica that finds no lease creates one,
// even if another replica leads.
func (f *fleet) awaitReconciles() *member {
	f.Helper()
	var m *member
	f.eventually("a leader has reconciled an object", func() error {
		m = f.awaitLeader(0)
		reconciled, seen := false, map[string]bool{}
		for _, e := range f.events() {
			switch {
			case e.Kind == history.Seen:
				seen[e.Process] = true
			case e.Kind == history.Leads && e.Process == m.processName():
				reconciled = false
			case e.Kind == history.End && e.Process == m.processName() && e.Error == "":
				reconciled = true
			}
		}
		if !reconciled {
			return fmt.Errorf("%s has not reconciled any object", m.processName())
		}
		for _, m := range f.members {
			if !seen[m.processName()] {
				return fmt.Errorf("%s has not observed a lease", m.processName())
			}
		}
		return nil
	})
	return m
}

// identities returns the lease holder identity of each process.
func (f *fleet) identities() map[string]string {
	f.Helper()
	identities := map[string]string{}
	for _, e := range f.events() {
		if e.Kind == history.Started {
			identities[e.Process] = e.Holder
		}
	}
	return identities
}

// settle stops changing objects and waits until all changes have been reconciled.
func (f *fleet) settle() {
	f.Helper()
	f.load.stop()
	f.eventually("all objects are reconciled", func() error {
		f.checkProcesses()
		changed, done := map[string]int64{}, map[string]int64{}
		for _, e := range f.events() {
			switch {
			case e.Kind == history.Changed:
				changed[e.Object] = max(changed[e.Object], e.N)
			case e.Kind == history.End && e.Error == "":
				done[e.Object] = max(done[e.Object], e.N)
			}
		}
		for object, n := range changed {
			if done[object] < n {
				return fmt.Errorf("%s: the last reconciled change is %d, want %d", object, done[object], n)
			}
		}
		return f.checkStatuses()
	})
}

// checkStatuses returns an error if the status of an object does not match its spec.
func (f *fleet) checkStatuses() error {
	list, err := f.client.Resource(widgets).Namespace(f.namespace).List(f.Context(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, object := range list.Items {
		spec, _, _ := unstructured.NestedInt64(object.Object, "spec", "n")
		status, _, _ := unstructured.NestedInt64(object.Object, "status", "n")
		if spec != status {
			return fmt.Errorf("%s: got change %d in the status, want %d", object.GetName(), status, spec)
		}
	}
	return nil
}
