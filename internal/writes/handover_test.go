package writes

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

var widgets = schema.GroupResource{Group: "example.com", Resource: "widgets"}

// noted is what two calls have written, and what the note of it contains: no server, and UIDs only of removed objects.
func noted(server string, uid types.UID) Note {
	return Note{
		{Resource: widgets, Object: "x/a", Writes: []Write{
			{
				Server: server, Resource: schema.GroupResource{Resource: "configmaps"}, Namespace: "x", Name: "c", UID: uid,
				States: []State{{Version: "7", Labels: labels.Set{"l": "v"}}, {Version: "8", Scaled: true}},
			},
			{Server: server, Resource: widgets, Namespace: "x", Name: "a", UID: "u", Gone: true},
		}},
		{Resource: widgets, Object: "b", Unknown: []Target{{Server: server, Resource: widgets, Name: "b"}}},
	}
}

// fromNote marks calls as those of another process.
func fromNote(n Note) Note {
	for i := range n {
		n[i].Noted = true
	}
	return n
}

// compressed returns text in the encoding of a note.
func compressed(text string) string {
	var encoded bytes.Buffer
	encoder := base64.NewEncoder(base64.StdEncoding, &encoded)
	z := gzip.NewWriter(encoder)
	_, _ = z.Write([]byte(text))
	_ = z.Close()
	_ = encoder.Close()
	return encoded.String()
}

func TestNote_SurvivesEncoding(t *testing.T) {
	before := noted("api", "u")
	text, left := before.Encode(1 << 20)
	got, err := ParseNote(text)
	if want := fromNote(noted("", "")); left != 0 || err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if !reflect.DeepEqual(before, noted("api", "u")) {
		t.Errorf("the note was changed to %+v", before)
	}
	if text, left := (Note{}).Encode(1 << 20); text != "" || left != 0 {
		t.Errorf("got %q for nothing, %d calls were left out", text, left)
	}
	if got, err := ParseNote(""); err != nil || got != nil {
		t.Errorf("got %v, %v", got, err)
	}
	for _, text := range []string{"x", "[]", `{"configmaps":7}`, text[:40], compressed("7"), compressed("[{}")} {
		if got, err := ParseNote(text); err == nil {
			t.Errorf("%s: got %v and no error", text, got)
		}
	}
}

// VERSIONING.md lists the format. The replica that reads a note can have another version than the writer.
func TestNote_IsReadAsBefore(t *testing.T) {
	const text = "H4sIAAAAAAAA/6yQzUrFMBCF9z7GWQddKvMC7t1KF9N0LNE0E/JzW7jk3SUViy4KIncZ5uQ7P69XJMlakxXQFc9JawRBNl6il3ur" +
		"CwxeDgVWN81SMpqBju9iCwjbA8NgTa5IBp0Qf2Oshjc3Lxx3UuBFcuT9suHr3UUwyIW/qRdJ2WkA4REGnkfxuTt4EC5ozfyUPPW/" +
		"lr1MoJKqtKHf/1v1JGCvXd0EQoXBrEFuYXbsOnZ8+Ai6htNZ/5p+x7WhDXefAQAA//+zLQhB8gEAAA=="
	if got, err := ParseNote(text); err != nil || !reflect.DeepEqual(got, fromNote(noted("", ""))) {
		t.Errorf("got %+v, %v", got, err)
	}
}

// written is a call that has written one object.
func written(i int) Call {
	name := fmt.Sprintf("w%d", i*i)
	return Call{Resource: widgets, Object: "x/" + name, Writes: []Write{{
		Resource: schema.GroupResource{Resource: "configmaps"}, Namespace: "x", Name: name,
		States: []State{{Version: fmt.Sprint(1000000 + 7*i), Labels: labels.Set{"owner": name}}},
	}}}
}

// The newest calls are kept, in text that is not longer than the limit.
func TestNote_LeavesOutTheOldestCalls(t *testing.T) {
	var all Note
	for i := range 4000 {
		all = append(all, written(i))
	}
	for _, limit := range []int{500, 1000, 64 << 10} {
		text, left := all.Encode(limit)
		got, err := ParseNote(text)
		if err != nil || len(text) > limit || len(text) < limit*9/10 || len(got) != len(all)-left ||
			!reflect.DeepEqual(got, fromNote(slices.Clone(all[left:]))) {
			t.Errorf("limit %d: got %d calls in %d bytes, %d were left out, error %v", limit, len(got), len(text), left, err)
		}
		t.Logf("%d bytes contain %d calls", len(text), len(got))
	}
	if text, left := all.Encode(10); text != "" || left != len(all) {
		t.Errorf("got %q, %d calls were left out", text, left)
	}
}

// The note of a call that has written more than a note can contain is a part of it.
func TestNote_ContainsAPartOfALongCall(t *testing.T) {
	l, long := &Ledger{}, written(0)
	for i := range 4000 {
		long.Writes = append(long.Writes, written(i).Writes...)
	}
	for range 2000 {
		long.Unknown = append(long.Unknown, Target{Name: "a"})
	}
	l.Add(long)
	var all Call
	for _, part := range l.Recent() {
		all.Writes, all.Unknown = append(all.Writes, part.Writes...), append(all.Unknown, part.Unknown...)
	}
	if !reflect.DeepEqual(all.Writes, long.Writes) || len(all.Unknown) != len(long.Unknown) {
		t.Errorf("the ledger contains %d writes and %d unknown ones", len(all.Writes), len(all.Unknown))
	}
	const limit = 20_000
	text, left := l.Recent().Encode(limit)
	if got, err := ParseNote(text); err != nil || len(got) == 0 || left == 0 || len(text) < limit/2 {
		t.Errorf("got %d parts in %d bytes, %d were left out, error %v", len(got), len(text), left, err)
	}
}

// The text in a Lease can have been written by anybody who can write Leases.
func TestParseNote_LimitsTheSize(t *testing.T) {
	for name, text := range map[string]string{
		"long":     compressed(`[{"object":"` + strings.Repeat("a", maxDecoded) + `"}]`),
		"calls":    compressed("[{}" + strings.Repeat(",{}", maxSize) + "]"),
		"writes":   compressed(`[{"writes":[{}` + strings.Repeat(",{}", maxSize) + "]}]"),
		"states":   compressed(`[{"writes":[{"states":[{}` + strings.Repeat(",{}", maxSize) + "]}]}]"),
		"unknown":  compressed(`[{"unknown":[{}` + strings.Repeat(",{}", maxSize) + "]}]"),
		"nonsense": compressed(strings.Repeat("[", maxDecoded/2)),
	} {
		if n, err := ParseNote(text); err == nil {
			t.Errorf("%s: a note with %d calls was read", name, len(n))
		}
	}
}

func TestLedger_RemembersCallsForSomeTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &Ledger{}
		call := func(name string) Call { return Call{Object: name, Writes: []Write{{Name: name}}} }
		want := func(names ...string) {
			t.Helper()
			var want Note
			for _, name := range names {
				c := call(name)
				c.Noted = name == "c" || name == "d"
				want = append(want, c)
			}
			if got := l.Recent(); !reflect.DeepEqual(got, want) {
				t.Errorf("got %+v, want %+v", got, want)
			}
		}
		want()
		l.Add(call("a"))
		time.Sleep(recentFor - time.Second)
		l.Add(call("b"))
		l.Add(Call{Object: "wrote nothing"})
		want("a", "b")
		time.Sleep(time.Second)
		want("b")
		synctest.Wait()
		if len(l.calls) != 1 {
			t.Errorf("the ledger contains %d calls", len(l.calls))
		}
		l.Replace(Note{call("c"), call("d")})
		want("c", "d")
		time.Sleep(recentFor)
		synctest.Wait()
		if l.calls != nil || l.timer != nil || l.size > 0 || len(l.types) > 0 {
			t.Errorf("%v is left", l.calls)
		}
		l.Add(call("e"))
		want("e")
		l.Replace(nil)
		want()
		l = nil
		l.Add(call("f"))
		want()
	})
}

func TestLedger_ForgetsTheOldestCalls(t *testing.T) {
	l := &Ledger{}
	for i := range maxSize {
		l.Add(written(i))
	}
	got := l.Recent()
	if n := len(got); n != maxSize/3 || !reflect.DeepEqual(got[n-1], written(maxSize-1)) {
		t.Errorf("got %d calls, the last one for %s", n, got[n-1].Object)
	}
	if n := len(l.CallsFor(widgets)); n != len(got) {
		t.Errorf("got %d calls for the type, want %d", n, len(got))
	}
}

func TestLedger_ReturnsTheCallsForAType(t *testing.T) {
	l := &Ledger{}
	for _, c := range noted("", "") {
		l.Add(c)
	}
	l.Add(Call{Resource: schema.GroupResource{Resource: "widgets"}, Unknown: []Target{{}}})
	if got := l.CallsFor(schema.GroupResource{Resource: "none"}); got != nil {
		t.Errorf("got %+v", got)
	}
	if got := l.CallsFor(widgets); !reflect.DeepEqual(Note(got), noted("", "")) {
		t.Errorf("got %+v", got)
	}
}

func TestLedgerFrom_ReturnsWhatTheContextCarries(t *testing.T) {
	if l := LedgerFrom(t.Context()); l != nil {
		t.Errorf("got %v", l)
	}
	want := &Ledger{}
	if l := LedgerFrom(WithLedger(t.Context(), want)); l != want {
		t.Errorf("got %v, want %v", l, want)
	}
}
