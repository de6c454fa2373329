package typewatch

import (
	"fmt"
	"strconv"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
)

// lookUp looks up the owners of an object in a store, as an Owns watch does.
func lookUp(served *objects.Store, o *Object) {
	if o == nil {
		return
	}
	owners := o.Owners()
	for i := range owners {
		served.FindOwner(&owners[i])
	}
}

// BenchmarkChanged measures a change until all subscriptions have received it. The "blocking" ones read the labels of
// both states, like MapFuncs, and the "owners" ones look up the owners, like Owns.
func BenchmarkChanged(b *testing.B) {
	for _, kind := range []string{"blocking", "owners"} {
		for _, n := range []int{1, 100, 500} {
			b.Run(fmt.Sprintf("%s/%d", kind, n), func(b *testing.B) { benchmarkChanged(b, kind == "blocking", n) })
		}
	}
}

func benchmarkChanged(b *testing.B, blocking bool, n int) {
	b.Helper()
	p := newTestPool(newServer())
	served := objects.NewStore(objects.Metadata)
	var received sync.WaitGroup
	read := func(o *Object) { lookUp(served, o) }
	if blocking {
		read = func(o *Object) {
			if o != nil {
				_ = o.GetLabels()["a"]
			}
		}
	}
	var subscriptions []*Subscription
	o := options(Metadata)
	o.Blocking = blocking
	for i := range n {
		subscriptions = append(subscriptions, p.Subscribe(o, nil))
		subscriptions[i].Attach(EventHandler{Known: func([]*Object) {}, Synced: func() {}, Changed: func(c Change) {
			read(c.Old)
			read(c.New)
			received.Done()
		}})
	}
	w := subscriptions[0].watch().reflectors[0]
	if err := w.Replace(nil, "1"); err != nil {
		b.Fatal(err)
	}
	for _, s := range subscriptions {
		s.settle()
	}
	states := ownedStates(b)
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		i++
		received.Add(n)
		if err := w.Update(states[i%len(states)]); err != nil {
			b.Fatal(err)
		}
		received.Wait()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/subscription")
	for _, s := range subscriptions {
		closeAndWait(s)
	}
}

func ownedStates(b *testing.B) (states []any) {
	b.Helper()
	for version := range 200 {
		o := owned("a", strconv.Itoa(version+10), types.UID("x"))
		states = append(states, received(b, o, Metadata, true))
	}
	return states
}

// BenchmarkPass measures a pass over the existing objects, whose owners are looked up by all subscriptions. The cases
// "read" only read the store and decode the owners once.
func BenchmarkPass(b *testing.B) {
	for _, size := range []struct{ objects, subscriptions int }{{10_000, 1}, {10_000, 100}, {100_000, 1000}} {
		name := fmt.Sprintf("%dx%d", size.objects, size.subscriptions)
		p := newTestPool(newServer())
		first, w := listedWatch(b, p, size.objects)
		served := objects.NewStore(objects.Metadata)
		b.Run("read/"+name, func(b *testing.B) {
			for b.Loop() {
				readAll(w.watch.store, served)
			}
			reportPerObject(b, size.objects)
		})
		subscriptions := []*Subscription{first}
		for range size.subscriptions {
			subscriptions = append(subscriptions, p.Subscribe(options(Metadata), nil))
		}
		b.Run("pass/"+name, func(b *testing.B) {
			before := w.watch.passes
			for b.Loop() {
				passAll(subscriptions, served)
			}
			reportPerObject(b, size.objects)
			b.ReportMetric(float64(w.watch.passes-before)/float64(b.N), "passes")
		})
		for _, s := range subscriptions {
			closeAndWait(s)
		}
	}
}

func reportPerObject(b *testing.B, n int) {
	b.Helper()
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/object")
}

// readAll reads a store and looks up the owners of its objects.
func readAll(from, served *objects.Store) {
	for _, r := range from.All() {
		owners := objects.OwnersOf(r)
		for i := range owners {
			served.FindOwner(&owners[i])
		}
	}
}

// passAll attaches all subscriptions except the first one, and waits until they have received the existing objects.
func passAll(subscriptions []*Subscription, served *objects.Store) {
	for _, s := range subscriptions[1:] {
		s.Attach(EventHandler{Known: func(batch []*Object) {
			for _, o := range batch {
				lookUp(served, o)
			}
		}, Synced: func() {}, Changed: func(Change) {}})
	}
	for _, s := range subscriptions {
		s.settle()
	}
}
