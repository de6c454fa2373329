package acceptance

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

func TestAllocate(t *testing.T) {
	for name, test := range map[string]struct {
		requests []request
		granted  map[types.UID]int64
		free     int64
	}{
		"no requests":                        {nil, nil, 100},
		"all fit":                            {[]request{{"a", 50}, {"b", 50}}, map[types.UID]int64{"a": 50, "b": 50}, 0},
		"the first request takes precedence": {[]request{{"a", 60}, {"b", 60}}, map[types.UID]int64{"a": 60}, 40},
		"a later smaller request fits": {
			[]request{{"a", 60}, {"b", 60}, {"c", 40}}, map[types.UID]int64{"a": 60, "c": 40}, 0,
		},
		"a spec that is too large": {
			[]request{{"a", 40}, {"b", 40}, {"a", 90}, {"b", 40}}, map[types.UID]int64{"a": 40, "b": 40}, 20,
		},
		"a spec that grows": {
			[]request{{"a", 40}, {"b", 40}, {"a", 60}, {"b", 40}}, map[types.UID]int64{"a": 60, "b": 40}, 0,
		},
		"a spec that shrinks":                 {[]request{{"a", 80}, {"a", 10}, {"b", 40}}, map[types.UID]int64{"a": 80}, 20},
		"a smaller spec after a rejected one": {[]request{{"a", 120}, {"a", 60}}, map[types.UID]int64{"a": 60}, 40},
	} {
		t.Run(name, func(t *testing.T) {
			granted, free := allocate(100, test.requests)
			if !maps.Equal(granted, test.granted) || free != test.free {
				t.Errorf("got granted %v and free %d; want %v and %d", granted, free, test.granted, test.free)
			}
		})
	}
}

func TestMemoryBudget_AcceptedSpecsComeFirst(t *testing.T) {
	younger, older, rejected := generations("Wheel")[0], generations("Wheel", "Brake")[1], generations("Wheel")[0]
	younger.Name, younger.UID, younger.CreationTimestamp = "younger", "y", metav1.Unix(2, 0)
	older.Name, older.UID, older.CreationTimestamp = "older", "o", metav1.Unix(1, 0)
	rejected.Name, rejected.UID, rejected.CreationTimestamp = "rejected", "r", metav1.Unix(0, 0)
	objects := []*unstructured.Unstructured{asObject(t, younger), asObject(t, older), asObject(t, rejected)}
	p, _ := newTestController(objects, nil)
	add(t, p, stored(t, younger, 1))
	p.registry.set("rejected", decision{uid: "r", validation: validation{rejection: &rejection{reason: reasonInvalid}}})
	order := func(own types.UID) (uids []types.UID) {
		requests, err := p.definitions.validator.memory.requests(own)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range requests {
			if uids = append(uids, r.uid); r.memory <= 0 {
				t.Errorf("%s requests %d", r.uid, r.memory)
			}
		}
		return uids
	}
	if got := order("o"); !slices.Equal(got, []types.UID{"y", "o", "y"}) {
		t.Errorf("got order %v", got)
	}
	if got := order("r"); !slices.Equal(got, []types.UID{"y", "r", "o", "y"}) {
		t.Errorf("for the rejected Blueprint: got order %v", got)
	}
	p.registry.set("rejected", decision{uid: "r", validation: validation{rejection: &rejection{reason: reasonBudget}}})
	if got := order("o"); !slices.Equal(got, []types.UID{"y", "r", "o", "y"}) {
		t.Errorf("with one Blueprint over the budget: got order %v", got)
	}
}

func TestQuantity(t *testing.T) {
	for bytes, want := range map[int64]string{0: "0", 1000: "0", 1 << 10: "1Ki", 300_000: "292Ki", 5 << 20: "5Mi", 5<<20 +
		1<<19: "5632Ki", 57_500_000: "54Mi"} {
		if got := quantity(bytes); got != want {
			t.Errorf("%s bytes: got %s, want %s", fmt.Sprint(bytes), got, want)
		}
	}
}
