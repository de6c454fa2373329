package fleet_test

import (
	"strings"
	"testing"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/fleet"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/leasename"
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

// VERSIONING.md lists the formats. Members of two versions can be in one fleet.
func TestFormats_AreReadAndWrittenAsBefore(t *testing.T) {
	for text, want := range map[string]fleet.Holder{
		"shards=8/pod-1_6f1c":          {Shards: 8, Leader: "pod-1_6f1c"},
		"shards=8,changing/pod-1_6f1c": {Shards: 8, Changing: true, Leader: "pod-1_6f1c"},
		"shards=8/":                    {Shards: 8},
	} {
		if h, ok := fleet.ParseHolder(text); !ok || h != want || h.String() != text {
			t.Errorf("%s: got %+v, %t", text, h, ok)
		}
	}
	for _, text := range []string{
		`{"shards":8}`,
		`{"shards":8,"node":"n","layout":4,"warm":[0,3],"leaving":true}`,
	} {
		if s, err := fleet.DecodeState(text); err != nil || s.Encode() != text {
			t.Errorf("%s: got %s, %v", text, s.Encode(), err)
		}
	}
	if _, err := fleet.DecodeState(`{"format":2,"shards":8}`); err == nil || !strings.Contains(err.Error(), "format 2") {
		t.Errorf("a state in a newer format: got %v", err)
	}
	for got, want := range map[string]string{
		leasename.Shard("f", 3): "f-shard-3", leasename.Plan("f"): "f-plan",
		leasename.Member("f", "a"): "f-member-ca978112ca1bbdca",
		leasename.LabelValue("f"):  "f", leasename.Label: "dynamic-controller.github.io/fleet",
		fleet.StateAnnotation: "dynamic-controller.github.io/member",
		fleet.PlanAnnotation:  "dynamic-controller.github.io/plan",
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
