package platform

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

func TestBudgetIsDivided(t *testing.T) {
	demanding := func(name string, since, held, wanted int64) demand {
		return demand{claim: claim{name: name, uid: types.UID(name), since: since}, held: held, wanted: wanted}
	}
	for name, test := range map[string]struct {
		demands      []demand
		held, wanted string // who has a place
		left         int64
	}{
		"nobody": {nil, "", "", 100},
		"all fit": {
			[]demand{demanding("a", 1, 0, 50), demanding("b", 2, 0, 50)}, "", "a b", 0,
		},
		"the older goes first": {
			[]demand{demanding("b", 2, 0, 60), demanding("a", 1, 0, 60)}, "", "a", 40,
		},
		"of the same second it is always the same one": {
			[]demand{demanding("b", 1, 0, 60), demanding("a", 1, 0, 60)}, "", "a", 40,
		},
		"a smaller one takes what is left": {
			[]demand{demanding("a", 1, 0, 60), demanding("b", 2, 0, 60), demanding("c", 3, 0, 40)}, "", "a c", 0,
		},
		"an accepted one goes before an older one": {
			[]demand{demanding("a", 1, 0, 60), demanding("b", 2, 60, 60)}, "b", "b", 40,
		},
		"an accepted one keeps its place when it wants more than is left": {
			[]demand{demanding("a", 1, 40, 90), demanding("b", 2, 40, 40)}, "a b", "b", 20,
		},
		"an accepted one grows": {
			[]demand{demanding("a", 1, 40, 60), demanding("b", 2, 40, 40)}, "a b", "a b", 0,
		},
		"an accepted one that shrinks holds its place until that is accepted": {
			[]demand{demanding("a", 1, 80, 10), demanding("b", 2, 0, 40)}, "a", "a", 20,
		},
		"refused ones take nothing": {
			[]demand{demanding("a", 1, 0, 0), demanding("b", 2, 0, 100)}, "", "b", 0,
		},
		"the oldest keep their places when the budget has become smaller": {
			[]demand{demanding("b", 2, 80, 80), demanding("a", 1, 80, 80)}, "a", "a", 20,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := divide(100, test.demands)
			if got := names(p.held); got != test.held {
				t.Errorf("accepted specs of %q have a place, want %q", got, test.held)
			}
			if got := names(p.wanted); got != test.wanted {
				t.Errorf("newest specs of %q have a place, want %q", got, test.wanted)
			}
			if p.left != test.left {
				t.Errorf("%d are left, want %d", p.left, test.left)
			}
		})
	}
}

func names(of map[types.UID]bool) string {
	var all []string
	for uid := range of {
		all = append(all, string(uid))
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func TestQuantities(t *testing.T) {
	for bytes, want := range map[int64]string{0: "0", 1000: "0", 1 << 10: "1Ki", 300_000: "292Ki", 5 << 20: "5Mi", 5<<20 + 1<<19: "5632Ki", 57_500_000: "54Mi"} {
		if got := quantity(bytes); got != want {
			t.Errorf("%s is written as %s, want %s", fmt.Sprint(bytes), got, want)
		}
	}
}
