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

// events is the log so far.
func (f *fleet) events() []history.Event {
	f.Helper()
	events, err := f.reader.Events()
	f.noError(err)
	return events
}

// eventually polls until done says nil.
func (f *fleet) eventually(what string, done func() error) {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.Context(), patience)
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
			f.Fatalf("not within %s: %s: %v", patience, what, err)
		case <-tick.C:
		}
	}
}

// leader is whoever leads by its own account in a term that began since, and can do so.
func (f *fleet) leader(since history.Time) *member {
	f.Helper()
	leads := map[string]history.Time{}
	for _, e := range f.events() {
		switch e.Kind {
		case history.Leads:
			leads[e.Who] = e.At
		case history.Lost, history.Led:
			delete(leads, e.Who)
		}
	}
	for _, m := range f.members {
		if at, ok := leads[m.who()]; ok && at >= since && !m.paused && !m.process.hasEnded() {
			return m
		}
	}
	return nil
}

// awaitLeader waits for a term that began since.
func (f *fleet) awaitLeader(since history.Time) *member {
	f.Helper()
	var m *member
	f.eventually("a replica leads", func() error {
		f.unharmed()
		if m = f.leader(since); m == nil {
			return errors.New("none does")
		}
		return nil
	})
	return m
}

// unharmed fails the test if a process has ended that nobody ended.
func (f *fleet) unharmed() {
	f.Helper()
	for _, m := range f.members {
		if m.process.hasEnded() && m.process.err != nil && m.process.cmd.ProcessState.ExitCode() > 0 {
			f.Fatalf("%s has ended: %v", m.who(), m.process.err)
		}
	}
}

// atWork waits until somebody leads and has reconciled something in that term, and all replicas know that there is a lease:
// one that has just started and finds none creates it, whoever may lead. It returns the leader.
func (f *fleet) atWork() *member {
	f.Helper()
	var m *member
	f.eventually("a leader is at work", func() error {
		m = f.awaitLeader(0)
		works, seen := false, map[string]bool{}
		for _, e := range f.events() {
			switch {
			case e.Kind == history.Seen:
				seen[e.Who] = true
			case e.Kind == history.Leads && e.Who == m.who():
				works = false
			case e.Kind == history.End && e.Who == m.who() && e.Error == "":
				works = true
			}
		}
		if !works {
			return fmt.Errorf("%s has reconciled nothing yet", m.who())
		}
		for _, m := range f.members {
			if !seen[m.who()] {
				return fmt.Errorf("%s has not found a lease yet", m.who())
			}
		}
		return nil
	})
	return m
}

// identities are what the lease calls the processes.
func (f *fleet) identities() map[string]string {
	f.Helper()
	identities := map[string]string{}
	for _, e := range f.events() {
		if e.Kind == history.Started {
			identities[e.Who] = e.Holder
		}
	}
	return identities
}

// settle pauses the changes until all that were made are reconciled.
func (f *fleet) settle() {
	f.Helper()
	f.load.stop()
	f.eventually("all objects are reconciled", func() error {
		f.unharmed()
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
				return fmt.Errorf("%s has change %d, and %d was reconciled", object, n, done[object])
			}
		}
		return f.written()
	})
}

// written is an error while the API server holds an object whose status is not its spec's.
func (f *fleet) written() error {
	list, err := f.client.Resource(widgets).Namespace(f.namespace).List(f.Context(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, object := range list.Items {
		spec, _, _ := unstructured.NestedInt64(object.Object, "spec", "n")
		status, _, _ := unstructured.NestedInt64(object.Object, "status", "n")
		if spec != status {
			return fmt.Errorf("%s has change %d, and %d is written", object.GetName(), spec, status)
		}
	}
	return nil
}
