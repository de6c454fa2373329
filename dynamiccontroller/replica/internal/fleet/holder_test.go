package fleet_test

import (
	"testing"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/fleet"
)

func TestHolder_IsParsedAsItWasWritten(t *testing.T) {
	for text, want := range map[string]fleet.Holder{
		"shards=8/pod-1_6f1c":            {Shards: 8, Leader: "pod-1_6f1c"},
		"shards=256,changing/pod-1_6f1c": {Shards: 256, Changing: true, Leader: "pod-1_6f1c"},
		"shards=2/":                      {Shards: 2},
		"shards=2/a/b":                   {Shards: 2, Leader: "a/b"},
	} {
		got, ok := fleet.ParseHolder(text)
		if !ok || got != want {
			t.Errorf("%q: got %+v, %t; want %+v", text, got, ok, want)
		}
		if got.String() != text {
			t.Errorf("%q: got %q", text, got)
		}
	}
}

func TestHolder_OthersAreNotThoseOfAFleet(t *testing.T) {
	for _, text := range []string{
		"", "pod-1_6f1c", "shards=8", "shards=8pod", "shards=/pod", "shards=x/pod", "shards=0/pod", "shards=1/pod",
		"shards=3/pod", "shards=512/pod", "shards=-8/pod", "shard=8/pod", "shards=8,chang/pod", "a/shards=8/pod",
		"shards=99999999999999999999/pod",
	} {
		if h, ok := fleet.ParseHolder(text); ok {
			t.Errorf("%q: got %+v, want none", text, h)
		}
	}
}
