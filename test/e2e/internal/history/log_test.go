package history

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

func TestLinesOfSeveralWritersDoNotMixAndAreOrderedByTime(t *testing.T) {
	const writers, each = 4, 500
	path := filepath.Join(t.TempDir(), "log")
	var writing sync.WaitGroup
	for i := range writers {
		log, err := Open(path, fmt.Sprintf("w%d", i))
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		writing.Go(func() {
			for n := range each {
				log.Add(Event{Kind: Begin, Object: "o", N: int64(n)})
			}
		})
	}
	writing.Wait()
	events, err := NewReader(path).Events()
	if err != nil {
		t.Fatal(err)
	}
	if len(events) != writers*each {
		t.Fatalf("read %d events, want %d", len(events), writers*each)
	}
	seen := map[string]int64{}
	for i, e := range events {
		if i > 0 && e.At < events[i-1].At {
			t.Fatalf("event %d is before event %d", i, i-1)
		}
		if e.N != seen[e.Who] {
			t.Fatalf("%s wrote %d, want %d", e.Who, e.N, seen[e.Who])
		}
		seen[e.Who]++
	}
}

func TestAReaderLeavesTheLineThatIsNotWholeYet(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	reader := NewReader(path)
	for _, step := range []struct {
		add  string
		want int
	}{
		{"{\"at\":2,\"who\":\"a\",\"kind\":\"leads\"}\n{\"at\":1,", 1},
		{"\"who\":\"a\",\"kind\":\"started\"}\n", 2},
	} {
		file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := file.WriteString(step.add); err != nil {
			t.Fatal(err)
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
		events, err := reader.Events()
		if err != nil {
			t.Fatal(err)
		}
		if len(events) != step.want {
			t.Fatalf("read %+v, want %d events", events, step.want)
		}
	}
	if events, _ := reader.Events(); events[0].Kind != Started {
		t.Errorf("the first event is %+v", events[0])
	}
}
