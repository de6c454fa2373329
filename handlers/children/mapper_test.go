package children

import (
	"errors"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/handlers/children/internal/desire"
	"github.com/dynamic-controller/engine/handlers/internal/fakeserver"
)

// verbsOf is a mapper that returns the verbs of config maps. All other resources support all verbs.
type verbsOf struct {
	meta.RESTMapper
	configMaps []string
}

func (m verbsOf) Verbs(resource schema.GroupVersionResource) ([]string, error) {
	if resource == configMaps {
		return m.configMaps, nil
	}
	return desire.NeededVerbs, nil
}

func TestReconcile_KindThatLacksVerbsGetsNeitherFinalizerNorWrites(t *testing.T) {
	for name, c := range map[string]struct {
		verbs []string
		want  string // the missing verbs, or "" if the child is created
	}{
		"all needed verbs": {desire.NeededVerbs, ""},
		"a review":         {[]string{"create"}, "delete, get, list, patch"},
		"no delete":        {[]string{"create", "get", "list", "patch", "watch"}, "delete"},
	} {
		t.Run(name, func(t *testing.T) {
			server := newFakeServer(newWidget())
			reconciler, err := New(Config{
				Client: server, Mapper: verbsOf{fakeserver.NewMapper(), c.verbs}, Name: "platform.example.com",
				Kinds: []Kind{{GroupKind: configMapKind.GroupKind, CrossNamespace: true}, widgetKind},
			})
			if err != nil {
				t.Fatal(err)
			}
			parent, other := newWidget(), newObject("example.com/v1", "Widget", "", "other")
			result, err := reconciler.Reconcile(t.Context(), first, parent, oneStage(newRemoteConfigMap("a"), other))
			switch refused := result.Children[0]; {
			case c.want == "" && err != nil:
				t.Errorf("got %v", err)
			case c.want != "" && (!errors.Is(err, ErrKindNotSupported) || refused.Reason != ReasonKindNotSupported ||
				refused.Message != ErrKindNotSupported.Error()+": it lacks "+c.want):
				t.Errorf("got %v, want the missing verbs %s", err, c.want)
			}
			if hasFinalizer := len(getParent(t, server).GetFinalizers()) > 0; hasFinalizer != (c.want == "") {
				t.Errorf("the parent has the finalizer: %t", hasFinalizer)
			}
			writes := server.TakeWrites()
			if !slices.Contains(writes, "apply widgets other") {
				t.Errorf("wrote %q; other children must be applied", writes)
			}
			if slices.Contains(writes, "apply configmaps a") != (c.want == "") {
				t.Errorf("wrote %q", writes)
			}
		})
	}
}
