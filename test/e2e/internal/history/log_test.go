package history

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

func TestLog_ConcurrentWritersDoNotInterleave(t *testing.T) {
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
			t.Fatalf("event %d has an earlier time than event %d", i, i-1)
		}
		if e.N != seen[e.Process] {
			t.Fatalf("got event %[2]d of %[1]s, want %[3]d", e.Process, e.N, seen[e.Process])
		}
		seen[e.Process]++
	}
}

func TestReader_IgnoresAnIncompleteLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	reader := NewReader(path)
	for _, step := range []struct {
		add  string
		want int
	}{
		{"{\"at\":2,\"process\":\"a\",\"kind\":\"leads\"}\n{\"at\":1,", 1},
		{"\"process\":\"a\",\"kind\":\"started\"}\n", 2},
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
		t.Errorf("got first event %+v, want kind %s", events[0], Started)
	}
}
