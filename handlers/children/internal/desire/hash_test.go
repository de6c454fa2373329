package desire

import (
	"strings"
	"testing"
)

// A child is written again if the first part of its hash changes. The second part shows after a restore which parent
// and which child the hash is about.
func TestHash(t *testing.T) {
	type part struct{ config, names bool } // which parts change
	in := func(changes ...func(*Input)) Input { return newInput(t, changes...) }
	farther := crossNamespace(configMapKind)
	byTeam := func(in *Input) { in.Parent.Writer = "team" }
	labelled := func(s *Spec) { setLabel(s.Object, "a", "b") }
	for change, test := range map[string]struct {
		before, after       Input
		beforeSpec, forSpec Spec
		want                part
	}{
		"nothing":        {in(), in(), configMap(), configMap(), part{}},
		"a value":        {in(), in(), configMap(), configMap(valued("y")), part{config: true}},
		"a label":        {in(), in(), configMap(), configMap(labelled), part{config: true}},
		"an annotation":  {in(), in(), configMap(), configMap(annotated("a", "b")), part{config: true}},
		"its name":       {in(), in(), configMap(), configMap(named("b")), part{true, true}},
		"its namespace":  {in(farther), in(farther), configMap(), configMap(inNamespace("far")), part{true, true}},
		"it is retained": {in(), in(), configMap(), configMap(retained), part{config: true}},
		"Adopt alone":    {in(), in(), configMap(), configMap(func(s *Spec) { s.Adopt = true }), part{}},
		"OnImmutable":    {in(), in(), configMap(), configMap(recreatedOnImmutable), part{}},
		"the identity":   {in(), in(byTeam), configMap(), configMap(), part{config: true}},
		"the parent's UID, as after a restore": {
			in(), in(func(in *Input) { in.Parent.SetUID("restored") }), configMap(), configMap(), part{config: true},
		},
		"the parent's name": {
			in(), in(func(in *Input) { in.Parent.SetName("q") }), configMap(), configMap(), part{true, true},
		},
		"the bucket": {
			in(), in(func(in *Input) { in.Parent.Buckets = true }), configMap(), configMap(), part{config: true},
		},
		"the status": {
			in(), in(), configMap(), configMap(func(s *Spec) { s.Object.Object["status"] = "x" }), part{},
		},
		"a kept value": {
			in(), in(), configMap(keeping("data.key")), configMap(keeping("data.key"), valued("y")), part{},
		},
		"the values of a child that is kept as a whole": {
			in(), in(), configMap(keeping("*")), configMap(keeping("*"), valued("y")), part{},
		},
		"a value that is kept from now on": {
			in(), in(), configMap(), configMap(keeping("data.key")), part{config: true},
		},
		"a field that others keep": {
			in(), in(), configMap(keeping("data.key")), configMap(keeping("data.other")), part{config: true},
		},
		"a kept field that does not exist": {
			in(), in(), configMap(), configMap(keeping("data.other")), part{config: true},
		},
	} {
		t.Run(change, func(t *testing.T) {
			before := one(t, test.before, test.beforeSpec).Ready.Hash
			after := one(t, test.after, test.forSpec).Ready.Hash
			configBefore, namesBefore, _ := strings.Cut(before, ".")
			configAfter, namesAfter, _ := strings.Cut(after, ".")
			if got := (part{configBefore != configAfter, namesBefore != namesAfter}); got != test.want {
				t.Errorf("got the hashes %s and %s; want changes of the parts: %+v", before, after, test.want)
			}
			if len(namesBefore) != 16 || configBefore == "" {
				t.Errorf("got the hash %q", before)
			}
		})
	}
}

// A hash that changes with a release of the controller writes every child again. These are the hashes and sizes of
// earlier releases.
func TestHash_IsStable(t *testing.T) {
	for situation, test := range map[string]struct {
		spec Spec
		hash string
		size int64
	}{
		"owned":             {configMap(), "64409a65810dfaa39cb42527.626367a0d3705275", 292},
		"retained":          {configMap(retained), "203bcb543eb83f0e0c9fd1e5.626367a0d3705275", 391},
		"with a kept field": {configMap(keeping("data.key")), "a2dbaeb674e70d3b06c45525.626367a0d3705275", 295},
	} {
		if got := one(t, newInput(t), test.spec); got.Ready.Hash != test.hash || got.Size != test.size {
			t.Errorf("%s: got %s and %d bytes, want %s and %d", situation, got.Ready.Hash, got.Size, test.hash, test.size)
		}
	}
}
