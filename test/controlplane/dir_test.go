package main

import (
	"os"
	"strings"
	"testing"
)

func TestLogTail_ReturnsTheRelevantLines(t *testing.T) {
	d := dir(t.TempDir())
	for _, c := range []struct {
		name string
		log  string
		want string
	}{
		{"a short log is returned completely", "one\ntwo\n", "    one\n    two"},
		{
			"a long log is cut to the last ten lines", strings.Repeat("old\n", 50) + strings.Repeat("new\n", 10),
			strings.TrimSuffix(strings.Repeat("    new\n", 10), "\n"),
		},
		{
			"a panic is cut to its first lines", "old\npanic: oh\n" + strings.Repeat("trace\n", 50),
			"    panic: oh\n" + strings.TrimSuffix(strings.Repeat("    trace\n", 9), "\n"),
		},
		{"an empty log is empty", "", "    "},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := os.WriteFile(d.logFile("component"), []byte(c.log), 0o600); err != nil {
				t.Fatal(err)
			}
			if got := d.logTail("component"); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
