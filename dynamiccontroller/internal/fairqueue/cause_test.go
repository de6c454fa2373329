package fairqueue

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"
)

// kinds returns a cause with these bits.
func kinds(bits uint16) Cause[string] { return Cause[string]{Kinds: bits} }

// caused returns a cause with bit 1 and an object.
func caused(by string) Cause[string] { return Cause[string]{Kinds: 1, First: &by} }

// nextCause returns the cause of the next item, which must be a/1. The item is running until Done is called.
func nextCause(t *testing.T, q *testQueue) string {
	t.Helper()
	if q.Len() == 0 {
		t.Fatal("no item is waiting")
	}
	item, _, wait, _ := q.Next(nil)
	if item != "a/1" {
		t.Fatalf("got %s", item)
	}
	return describedCause(wait.Cause).String()
}

func TestCause_MergesUntilTheItemIsHandedOut(t *testing.T) {
	want := func(bits uint16, first string, others int) string {
		return fmt.Sprintf("kinds %b of %q and %d others", bits, first, others)
	}
	const item = "a/1"
	for name, test := range map[string]struct {
		options testOptions
		steps   func(q *testQueue, a testGroup)
		want    []string // by call
	}{
		"an item that is added without a cause has none": {
			steps: func(q *testQueue, _ testGroup) { q.Add(item) }, want: []string{want(0, "", 0)},
		},
		"kinds are combined": {
			steps: func(_ *testQueue, a testGroup) {
				a.Because(kinds(1)).Add(Live, item)
				a.Because(kinds(4)).Add(Live, item)
			},
			want: []string{want(5, "", 0)},
		},
		"the first object is kept, and others are counted": {
			steps: func(_ *testQueue, a testGroup) {
				for _, by := range []string{"x", "y", "x", "z", "y"} {
					a.Because(caused(by)).Add(Live, item)
				}
			},
			want: []string{want(1, "x", 3)},
		},
		"an object is kept if a cause without one came first": {
			steps: func(_ *testQueue, a testGroup) {
				a.Because(kinds(2)).Add(Live, item)
				a.Because(caused("x")).Add(Live, item)
			},
			want: []string{want(3, "x", 0)},
		},
		"a cause in the background lane is kept in the live lane": {
			steps: func(_ *testQueue, a testGroup) {
				a.Because(kinds(1)).Add(Background, item)
				a.Because(kinds(2)).Add(Live, item)
			},
			want: []string{want(3, "", 0)},
		},
		"a cause of the background lane adds to the live lane": {
			steps: func(_ *testQueue, a testGroup) {
				a.Because(kinds(2)).Add(Live, item)
				a.Because(kinds(1)).Add(Background, item)
			},
			want: []string{want(3, "", 0)},
		},
		"items of a batch do not share what is added later": {
			steps: func(_ *testQueue, a testGroup) {
				a.Because(kinds(1)).Add(Background, item, "a/2")
				a.Because(kinds(2)).Add(Background, "a/2")
			},
			want: []string{want(1, "", 0)},
		},
		"causes of a running item are for the next call": {
			steps: func(q *testQueue, a testGroup) {
				a.Because(kinds(1)).Add(Live, item)
				q.Get()
				a.Because(kinds(2)).Add(Background, item)
				a.Because(caused("x")).Add(Live, item)
				q.Done(item)
			},
			want: []string{want(3, "x", 0)},
		},
		"a call takes the cause with it": {
			steps: func(_ *testQueue, a testGroup) { a.Because(caused("x")).Add(Live, item) },
			want:  []string{want(1, "x", 0), want(0, "", 0)},
		},
		"a delay has the cause for which it was set": {
			steps: func(_ *testQueue, a testGroup) {
				a.Because(kinds(1)).AddAfter(item, time.Second)
				time.Sleep(time.Minute)
			},
			want: []string{want(1, "", 0)},
		},
		"the cause of a rate-limited item is kept": {
			steps: func(_ *testQueue, a testGroup) {
				a.Because(kinds(1)).AddRateLimited(item)
				time.Sleep(time.Hour)
			},
			want: []string{want(1, "", 0)},
		},
		"an immediate delay keeps the object": {
			steps: func(_ *testQueue, a testGroup) { a.Because(caused("x")).AddAfter(item, 0) },
			want:  []string{want(1, "x", 0)},
		},
		"a delay that is longer than another one adds its cause": {
			steps: func(_ *testQueue, a testGroup) {
				a.Because(kinds(1)).AddAfter(item, time.Second)
				a.Because(kinds(2)).AddAfter(item, time.Hour)
				time.Sleep(time.Minute)
			},
			want: []string{want(3, "", 0)},
		},
		"a cancelled delay adds its cause to the earlier call": {
			steps: func(_ *testQueue, a testGroup) {
				a.Because(kinds(1)).AddAfter(item, time.Hour)
				a.Because(kinds(2)).Add(Live, item)
			},
			want: []string{want(3, "", 0), want(0, "", 0)},
		},
		"a delay that the background lane overtakes adds its cause": {
			steps: func(_ *testQueue, a testGroup) {
				a.Because(kinds(1)).AddAfter(item, time.Hour)
				a.Because(kinds(2)).Add(Background, item)
			},
			want: []string{want(3, "", 0)},
		},
		"a delay of an item that waits in the live lane adds its cause": {
			steps: func(_ *testQueue, a testGroup) {
				a.Because(kinds(2)).Add(Live, item)
				a.Because(kinds(1)).AddAfter(item, time.Hour)
			},
			want: []string{want(3, "", 0)},
		},
		"a delay that is kept keeps its cause": {
			options: testOptions{KeepDelays: true},
			steps: func(q *testQueue, a testGroup) {
				a.Because(kinds(1)).AddAfter(item, time.Second)
				a.Because(kinds(2)).Add(Live, item)
			},
			want: []string{want(2, "", 0), want(1, "", 0)},
		},
		"a delay that is dropped drops its cause": {
			steps: func(q *testQueue, a testGroup) {
				a.Because(kinds(1)).AddAfter(item, time.Hour)
				a.Because(kinds(2)).Add(Background, item)
				a.CancelDelay(item)
			},
			want: []string{want(2, "", 0)},
		},
		"a shutdown drops the causes of delays": {
			steps: func(q *testQueue, a testGroup) {
				a.Because(kinds(1)).AddAfter(item, time.Hour)
				a.Because(kinds(2)).Add(Background, item)
				q.ShutDown()
				q.Restart()
			},
			want: []string{want(2, "", 0)},
		},
		"a stopped group drops the causes of waiting items": {
			steps: func(q *testQueue, a testGroup) {
				a.Because(kinds(1)).Add(Live, item)
				a.Stop()
				a.Because(kinds(2)).Add(Live, item)
				a.Start("a")
				a.Because(kinds(4)).Add(Live, item)
			},
			want: []string{want(4, "", 0)},
		},
		"a stopped group drops the causes of running items that were added again": {
			steps: func(q *testQueue, a testGroup) {
				q.Add(item)
				q.Get()
				a.Because(caused("x")).Add(Live, item)
				a.Because(kinds(2)).AddAfter(item, time.Hour)
				a.Stop()
				a.Start("a")
				a.Because(kinds(4)).Add(Live, item)
				q.Done(item)
			},
			want: []string{want(4, "", 0)},
		},
		"causes survive new options": {
			steps: func(_ *testQueue, a testGroup) {
				a.Because(caused("x")).Add(Background, item)
				a.Configure(testOptions{FlowsOf: each(identity)})
				a.Because(kinds(2)).Add(Background, item)
				a.Configure(testOptions{})
			},
			want: []string{want(3, "x", 0)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newTestQueue()
				test.steps(q, q.Open("a", "a", test.options))
				synctest.Wait()
				var got []string
				for i := range test.want {
					if i > 0 {
						time.Sleep(2 * time.Hour) // delays expire
						q.Add("a/1")
					}
					got = append(got, nextCause(t, q))
					q.Done("a/1")
				}
				if !slices.Equal(got, test.want) {
					t.Errorf("got %q, want %q", got, test.want)
				}
				stopAll(q)
			})
		})
	}
}

func TestCause_ItemsWithDifferentCausesInOneBatchKeepTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue()
		a := open(q, "a")["a"]
		a.Because(kinds(1)).Add(Background, "a/1", "a/2")
		a.Because(kinds(2)).Add(Background, "a/3", "a/2")
		a.Because(kinds(1)).Add(Background, "a/4")
		var got []string
		for range 4 {
			item, _, wait, _ := q.Next(nil)
			got = append(got, fmt.Sprint(item, " ", wait.Cause.Kinds))
			q.Done(item)
		}
		if want := []string{"a/1 1", "a/2 3", "a/3 2", "a/4 1"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

func TestCause_TheNumberOfOthersDoesNotOverflow(t *testing.T) {
	cause := caused("x")
	cause.Others = math.MaxUint32 - 1
	for range 3 {
		cause.merge(caused("y"))
	}
	if cause.Others != math.MaxUint32 {
		t.Errorf("%d others", cause.Others)
	}
	full := caused("y")
	full.Others = math.MaxUint32
	cause.merge(full)
	if cause.Others != math.MaxUint32 {
		t.Errorf("%d others", cause.Others)
	}
}

// The initial lists of a type and of its secondaries add the same objects for the same cause.
func TestCause_NeedsNoMemoryForBackgroundItems(t *testing.T) {
	const items, limit = 100_000, 80 // the limit is in bytes per item, excluding its name
	q, names := newTestQueue(), numbered("a", items)
	a := open(q, "a")["a"].Because(kinds(1))
	before := heapSize()
	for range 2 {
		for batch := range slices.Chunk(names, 256) {
			a.Add(Background, batch...)
		}
	}
	if used := (heapSize() - before) / items; used > limit {
		t.Errorf("each item takes %d bytes, want at most %d", used, limit)
	}
	runtime.KeepAlive(q)
	runtime.KeepAlive(names)
}

// A struct of 96 bytes fills its size class. Without causes, it would have 80 bytes.
func TestCause_TakesSixteenBytesOfAnItem(t *testing.T) {
	const limit = 96
	if size := unsafe.Sizeof(item[string, string, string, string]{}); size > limit {
		t.Errorf("an item takes %d bytes, want at most %d", size, limit)
	}
}

func TestCause_AllocatesNothing(t *testing.T) {
	q, names := newTestQueue(), []string{"a/1"}
	a := open(q, "a")["a"]
	cause := caused("x")
	if n := testing.AllocsPerRun(1000, func() {
		a.Because(cause).Add(Live, names...)
		a.Because(kinds(2)).Add(Live, names...)
		item, _, _, _ := q.Next(nil)
		q.Done(item)
	}); n > 0 {
		t.Errorf("%.1f allocations, want none", n)
	}
}
