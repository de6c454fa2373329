package handlers

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"
)

func TestAnInventoryIsReadAsItWasWritten(t *testing.T) {
	for _, text := range []string{"", "ConfigMap=v1/configmaps", "ConfigMap,Widget.example.com=v1/widgets"} {
		if again := parseInventory(text).String(); again != text {
			t.Errorf("%q became %q", text, again)
		}
	}
	configMap := schema.GroupKind{Kind: "ConfigMap"}
	i := parseInventory("ConfigMap,Widget.example.com=v1/widgets").with(inventory{entryOf(configMap, configMaps)})
	if i.String() != "ConfigMap=v1/configmaps,Widget.example.com=v1/widgets" {
		t.Errorf("got %s", i)
	}
	if left := i.without(inventory{{kind: configMap}}).String(); left != "Widget.example.com=v1/widgets" {
		t.Errorf("got %s", left)
	}
}

// A kind that the mapper does not know, for its group's discovery may have failed since the start, has no objects only if the
// API server says so: until then neither the inventory nor the finalizer lets it go.
func TestAKindIsGoneOnlyIfTheServerSaysSo(t *testing.T) {
	unavailable := apierrors.NewServiceUnavailable("its server is down")
	notServed := apierrors.NewGenericServerResponse(404, "list", configMaps.GroupResource(), "", "404 page not found", 0, true)
	for name, c := range map[string]struct {
		answer  error
		deleted bool // the parent
		fails   bool
		kept    bool // the inventory, or the finalizer
	}{
		"pruned, and its server is down":     {unavailable, false, true, true},
		"pruned, and not served":             {notServed, false, false, false},
		"pruned, and there":                  {nil, false, false, true},
		"cleaned up, and its server is down": {unavailable, true, true, true},
		"cleaned up, and not served":         {notServed, true, false, false},
		"cleaned up, and there":              {nil, true, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			server := newFakeServer(newWidget())
			children, parent := newChildren(t, ChildrenConfig{Client: server}), newWidget()
			if _, err := children.Reconcile(t.Context(), first, parent, stages(farAway("a"))); err != nil {
				t.Fatal(err)
			}
			server.took()
			children.config.Mapper = meta.NewDefaultRESTMapper(nil)
			if c.answer != nil {
				server.PrependReactor("list", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, c.answer })
			}
			if c.deleted {
				now := metav1.Now()
				parent.SetDeletionTimestamp(&now)
			}
			_, err := children.Reconcile(t.Context(), first, parent, stages())
			if isWaiting := err != nil && strings.HasPrefix(err.Error(), "requeue after"); (err != nil && !isWaiting) != c.fails {
				t.Errorf("got %v", err)
			}
			live, err := Live(server).Get(t.Context(), widgets, "default", "first")
			if err != nil {
				t.Fatal(err)
			}
			kept := live.GetAnnotations()[children.inventoryKey()] != ""
			if c.deleted {
				kept = len(live.GetFinalizers()) > 0
			}
			if writes := server.took(); kept != c.kept || c.answer == nil != strings.Contains(strings.Join(writes, " "), "delete configmaps a") {
				t.Errorf("kept: %t, and written: %q", kept, writes)
			}
		})
	}
}
