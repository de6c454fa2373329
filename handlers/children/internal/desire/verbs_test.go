package desire

import (
	"errors"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestCheckVerbs(t *testing.T) {
	for situation, test := range map[string]struct {
		resource  string
		supported []string
		want      string // the missing verbs
	}{
		"all needed verbs":           {"widgets", NeededVerbs, ""},
		"more verbs":                 {"widgets", []string{"create", "delete", "get", "list", "patch", "watch"}, ""},
		"a review":                   {"widgets", []string{"create"}, "delete, get, list, patch"},
		"no delete":                  {"widgets", []string{"create", "get", "list", "patch", "watch"}, "delete"},
		"no verbs":                   {"widgets", []string{}, "create, delete, get, list, patch"},
		"a path of another resource": {"status", NeededVerbs, "create, delete, get, patch"},
	} {
		t.Run(situation, func(t *testing.T) {
			err := checkVerbs(&meta.RESTMapping{
				Resource: schema.GroupVersionResource{Version: "v1", Resource: test.resource}, Scope: meta.RESTScopeNamespace,
			}, test.supported)
			if test.want == "" {
				if err != nil {
					t.Errorf("got %v", err)
				}
				return
			}
			want := ErrKindNotSupported.Error() + ": it lacks " + test.want
			if !errors.Is(err, ErrKindNotSupported) || err.Error() != want {
				t.Errorf("got %v, want %s", err, want)
			}
		})
	}
}
