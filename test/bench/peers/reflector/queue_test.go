package reflector

import (
	"slices"
	"strconv"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestQueue_ServesTypesInTurnAndMergesItems(t *testing.T) {
	q, got := newQueue(), []string(nil)
	busy, quiet := testLine(&got, "busy"), testLine(&got, "quiet")
	for n := range 3 {
		q.add(busy, strconv.Itoa(n))
		q.add(busy, strconv.Itoa(n))
	}
	q.add(quiet, "0")
	for range 4 {
		q.process()
	}
	if want := []string{"busy/0", "quiet/0", "busy/1", "busy/2"}; !slices.Equal(got, want) {
		t.Errorf("processed %v, want %v", got, want)
	}
}

func TestQueue_ItemAddedWhileRunningIsProcessedAgain(t *testing.T) {
	q, calls := newQueue(), 0
	l := testLine(nil, "")
	l.handler = func(key string) {
		if calls++; calls == 1 {
			q.add(l, key)
			q.add(l, key)
		}
	}
	q.add(l, "0")
	q.process()
	q.process()
	if calls != 2 || len(q.turns) != 0 || len(l.known) != 0 {
		t.Errorf("got %d calls, %d queued lines and %d known items, want 2, 0 and 0", calls, len(q.turns), len(l.known))
	}
}

func TestQueue_DroppedLineIgnoresItems(t *testing.T) {
	q, got := newQueue(), []string(nil)
	dropped, kept := testLine(&got, "dropped"), testLine(&got, "kept")
	q.add(dropped, "0")
	q.add(kept, "0")
	q.drop(dropped)
	q.add(dropped, "1")
	q.process()
	if want := []string{"kept/0"}; !slices.Equal(got, want) || len(q.turns) != 0 {
		t.Errorf("processed %v, want %v; got %d queued lines, want 0", got, want, len(q.turns))
	}
	q.shutDown()
	if q.process() {
		t.Error("process returned true after the shutdown")
	}
}

func testLine(got *[]string, name string) *line {
	return &line{known: map[string]state{}, handler: func(key string) { *got = append(*got, name+"/"+key) }}
}
