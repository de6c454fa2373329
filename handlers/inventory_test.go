package handlers

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"
)

func everyKind(schema.GroupKind) bool { return true }

func parseAll(text string) inventory {
	all, _ := parseInventory(text, everyKind)
	return all
}

func TestAnInventoryIsReadAsItWasWritten(t *testing.T) {
	for _, text := range []string{"", "ConfigMap=v1/configmaps", "ConfigMap,Widget.example.com=v1/widgets"} {
		if again := parseAll(text).String(); again != text {
			t.Errorf("%q became %q", text, again)
		}
	}
	configMap := schema.GroupKind{Kind: "ConfigMap"}
	i := parseAll("ConfigMap,Widget.example.com=v1/widgets").with(inventory{entryOf(configMap, configMaps)})
	if i.String() != "ConfigMap=v1/configmaps,Widget.example.com=v1/widgets" {
		t.Errorf("got %s", i)
	}
	if left := i.without(inventory{{kind: configMap}}).String(); left != "Widget.example.com=v1/widgets" {
		t.Errorf("got %s", left)
	}
}

func TestParseInventory_DropsMalformedEntries(t *testing.T) {
	for name, text := range map[string]string{
		"empty":                     ",,",
		"no kind":                   "=v1/configmaps",
		"only a group":              ".example.com=v1/widgets",
		"no version":                "ConfigMap=/configmaps",
		"no resource":               "ConfigMap=v1/",
		"no slash":                  "ConfigMap=v1",
		"a resource that is a path": "ConfigMap=v1/../../apis/apps/v1/deployments",
		"a version that is a path":  "ConfigMap=../configmaps",
		"a subresource":             "ConfigMap=v1/configmaps/status",
		"a query":                   "ConfigMap=v1/configmaps?watch=1",
		"a group that is a path":    "Widget.example.com/v1/x=v1/widgets",
		"a space":                   "Config Map=v1/configmaps",
		"a second entry of a kind":  "ConfigMap=v2/others",
	} {
		if got := parseAll("ConfigMap=v1/configmaps," + text).String(); got != "ConfigMap=v1/configmaps" {
			t.Errorf("%s: got %q", name, got)
		}
	}
}

func TestParseInventory_IsBounded(t *testing.T) {
	var short, long []string
	for i := range 2 * maxInventoryEntries {
		short = append(short, fmt.Sprintf("K%d", i))
		long = append(long, fmt.Sprintf("K%d.%s.x.io=v1/k%d", i, strings.Repeat("a", 60), i))
	}
	if n := len(parseAll(strings.Join(short, ","))); n != maxInventoryEntries {
		t.Errorf("read %d entries", n)
	}
	read := parseAll(strings.Join(long, ","))
	if n := len(read.String()); n > maxInventoryBytes || n < maxInventoryBytes-200 {
		t.Errorf("read %d bytes", n)
	}
	for _, entry := range read {
		if entry.resource != strings.ToLower(entry.kind.Kind) {
			t.Errorf("read half of an entry: %s", entry)
		}
	}
	if all := parseAll(strings.Repeat("a", 2*maxInventoryBytes)); len(all) > 0 {
		t.Errorf("read %d entries", len(all))
	}
}

// Other entries are kept as far as they fit, and never displace followed ones.
func TestInventory_FollowedEntriesComeFirst(t *testing.T) {
	var others inventory
	for i := range maxInventoryEntries {
		others = append(others, inventoryEntry{kind: schema.GroupKind{Kind: fmt.Sprintf("A%d", i)}})
	}
	widget := schema.GroupKind{Group: "example.com", Kind: "Widget"}
	text, err := inventory{entryOf(widget, widgets)}.annotation(others)
	if err != nil || !strings.HasPrefix(text, "Widget.example.com=v1/widgets,A0,") {
		t.Fatalf("got %.100s, %v", text, err)
	}
	followed, rest := parseInventory(text, func(kind schema.GroupKind) bool { return kind == widget })
	if len(followed) != 1 || len(rest) != maxInventoryEntries-1 {
		t.Errorf("read %d and %d entries", len(followed), len(rest))
	}
	if _, err := others.with(followed).annotation(nil); !errors.Is(err, errInventoryTooLarge) {
		t.Errorf("got %v", err)
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
