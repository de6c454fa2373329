package platform

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestWhichClaimGoesFirst(t *testing.T) {
	older, newer := claim{name: "b", since: 1, uid: "1"}, claim{name: "a", since: 2, uid: "2"}
	twin := claim{name: "c", since: 1, uid: "3"}
	for name, test := range map[string]struct {
		first, second claim
		maker         string
	}{
		"the older":                                {older, newer, ""},
		"that for which the type was made":         {newer, older, "2"},
		"the older, if it was made for another":    {older, newer, "9"},
		"of one second, the first by name":         {older, twin, ""},
		"of one second, for which it was made":     {twin, older, "3"},
		"the older, for which it was made as well": {older, newer, "1"},
	} {
		t.Run(name, func(t *testing.T) {
			if !test.first.goesBefore(test.second, typesUID(test.maker)) || test.second.goesBefore(test.first, typesUID(test.maker)) {
				t.Errorf("%+v does not go before %+v alone", test.first, test.second)
			}
		})
	}
}

func TestWhatIsClaimed(t *testing.T) {
	for name, test := range map[string]struct {
		spec map[string]any
		want string
	}{
		"a type that is named":                 {map[string]any{"crd": "widgets.example.com"}, "widgets.example.com"},
		"a type that is made":                  {map[string]any{"group": "example.com", "kind": "Policy"}, "policies.example.com"},
		"a type that is made, with its plural": {map[string]any{"group": "example.com", "kind": "Ox", "plural": "oxen"}, "oxen.example.com"},
	} {
		t.Run(name, func(t *testing.T) {
			object := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"type": test.spec}}}
			if got := claimOf(object).crd; got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}
