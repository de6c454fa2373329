package e2e

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/internal/shards"
	"github.com/dynamic-controller/engine/internal/testkit"
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
	testkit.Eventually(f, timeout, func() error {
		if err := done(); err != nil {
			return fmt.Errorf("%s: %w", condition, err)
		}
		return nil
	})
}

// leaders returns the running members that have reported themselves as leaders in a term that started at or after
// since, by lease.
func (f *fleet) leaders(since history.Time) map[string]*member {
	f.Helper()
	type process struct{ lease, name string }
	leads, stopped := map[process]history.Time{}, map[string]bool{}
	for _, e := range f.events() {
		p := process{e.Lease, e.Process}
		switch e.Kind {
		case history.Leads:
			leads[p] = e.At
		case history.Lost, history.Led:
			delete(leads, p)
		case history.Stopped:
			stopped[e.Process] = true
		case history.Resumed:
			delete(stopped, e.Process)
		}
	}
	leaders := map[string]*member{}
	for p, at := range leads {
		for _, m := range f.all() {
			if p.name == m.processName() && at >= since && !stopped[p.name] && m.isRunning() {
				leaders[p.lease] = m
			}
		}
	}
	return leaders
}

// leader returns the leader of a lease, or nil if there is none; see leaders.
func (f *fleet) leader(lease string, since history.Time) *member {
	f.Helper()
	return f.leaders(since)[lease]
}

// awaitLeader waits for a leader whose term started at or after since.
func (f *fleet) awaitLeader(lease string, since history.Time) *member {
	f.Helper()
	var m *member
	f.eventually("a replica leads "+lease, func() error {
		f.checkProcesses()
		if m = f.leader(lease, since); m == nil {
			return errors.New("no leader")
		}
		return nil
	})
	return m
}

// awaitLeaders waits until all leases have a leader.
func (f *fleet) awaitLeaders() {
	f.Helper()
	f.eventually("all leases have a leader", func() error {
		f.checkProcesses()
		leaders := f.leaders(0)
		for _, lease := range f.leases() {
			if leaders[lease] == nil {
				return fmt.Errorf("%s has no leader", lease)
			}
		}
		return nil
	})
}

// candidate returns a member that does not lead the lease. It prefers one that keeps the shard warm.
func (f *fleet) candidate(leader target) *member {
	f.Helper()
	warm := map[string]bool{}
	for _, e := range f.events() {
		if e.Lease == leader.lease && (e.Kind == history.Warm || e.Kind == history.Cold) {
			warm[e.Process] = e.Kind == history.Warm
		}
	}
	for _, m := range f.members {
		if m != leader.member && m.isRunning() && warm[m.processName()] {
			return m
		}
	}
	return f.other(leader.member)
}

// checkProcesses fails the test if a process has exited with an error.
func (f *fleet) checkProcesses() {
	f.Helper()
	for _, m := range f.all() {
		if m.process != nil && m.process.hasExited() && m.process.err != nil && m.process.cmd.ProcessState.ExitCode() > 0 {
			f.Fatalf("%s exited: %v", m.processName(), m.process.err)
		}
	}
}

// awaitReconciles waits until the leaders have reconciled objects in their terms, and all replicas have observed the
// first lease. It then returns the leader of the given lease. All replicas must observe the first lease because a new
// replica that finds no lease creates one, even if another replica leads.
func (f *fleet) awaitReconciles(lease string) *member {
	f.Helper()
	var m *member
	f.eventually("the leaders have reconciled objects", func() error {
		f.checkProcesses()
		leaders := f.leaders(0)
		if m = leaders[lease]; m == nil {
			return fmt.Errorf("%s has no leader", lease)
		}
		reconciled, seen := map[string]bool{}, map[string]bool{}
		for _, e := range f.events() {
			leader := leaders[e.Lease]
			isLeader := leader != nil && e.Process == leader.processName()
			switch {
			case (e.Kind == history.Read || e.Kind == history.Renewed) && e.Lease == leaseName:
				seen[e.Process] = true
			case e.Kind == history.Leads && isLeader:
				reconciled[e.Lease] = false
			case e.Kind == history.End && isLeader && e.Error == "":
				reconciled[e.Lease] = true
			}
		}
		for _, lease := range f.engineLeases() {
			if !reconciled[lease] {
				return fmt.Errorf("the leader of %s has not reconciled any object", lease)
			}
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

// leaseOf returns the lease that the leader of an object or of a type holds. The names of objects begin with those of
// their types.
func (f *fleet) leaseOf(name string) string {
	if f.shards == 0 {
		return leaseName
	}
	resource, _, _ := strings.Cut(name, "-")
	group := f.types[0].Group
	return shardLease(leaseName, shards.Of(schema.GroupResource{Group: group, Resource: resource}, f.shards))
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

// settle stops changing objects and waits until all changes have been reconciled. Each leader must also have reconciled
// the objects that do not change.
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
		return errors.Join(f.checkTerms(), f.checkStatuses())
	})
}

// checkTerms returns an error if the handler has not been called for each object in the current term.
func (f *fleet) checkTerms() error {
	leaders, called := f.leaders(0), map[string]bool{}
	for _, e := range f.events() {
		if m := leaders[e.Lease]; m == nil || e.Process != m.processName() {
			continue
		}
		switch e.Kind {
		case history.Leads:
			maps.DeleteFunc(called, func(name string, _ bool) bool { return f.leaseOf(name) == e.Lease })
		case history.Begin:
			called[e.Object] = true
		}
	}
	for _, o := range slices.Concat(f.load.changing, f.load.constant) {
		if !called[o.name] {
			return fmt.Errorf("the leader has not reconciled %s", o.name)
		}
	}
	return nil
}

// checkStatuses returns an error if the status of an object does not match its spec.
func (f *fleet) checkStatuses() error {
	for _, gvr := range f.types {
		list, err := f.client.Resource(gvr).Namespace(f.namespace).List(f.Context(), metav1.ListOptions{})
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
	}
	return nil
}
