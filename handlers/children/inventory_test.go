package children

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

func TestInventory_FormatRoundTrips(t *testing.T) {
	for _, text := range []string{
		"", "ConfigMap=v1/configmaps:0", "Job.batch=v1/jobs:0@a,Secret=v1/secrets:1@a@b,Widget.example.com=v1/widgets:2@c",
	} {
		if got := parseInventory(text).plain(); got != text {
			t.Errorf("got %q, want %q", got, text)
		}
	}
}

func TestInventory_WithAndWithout(t *testing.T) {
	i := parseInventory("ConfigMap=v1/configmaps:2@b,Widget.example.com=v1/widgets:0").
		with(parseInventory("ConfigMap=v1/configmaps:1@c@a,Widget.example.com=v2/widgets:1@a"))
	if i.plain() != "ConfigMap=v1/configmaps:2@a@b@c,Widget.example.com=v2/widgets:1@a" {
		t.Errorf("with: got %s", i)
	}
	const widgetsOnly = "Widget.example.com=v2/widgets:1@a"
	if left := i.without(inventory{{kind: configMapKind.GroupKind}}).plain(); left != widgetsOnly {
		t.Errorf("without: got %s", left)
	}
}

func TestParseInventory_DropsMalformedEntries(t *testing.T) {
	for name, text := range map[string]string{
		"empty":                    ",,",
		"no kind":                  "=v1/configmaps:0",
		"only a group":             ".example.com=v1/widgets:0",
		"no version":               "ConfigMap=/configmaps:0",
		"no resource":              "ConfigMap=v1/:0",
		"no slash":                 "ConfigMap=v1:0",
		"a path as the resource":   "ConfigMap=v1/../../apis/apps/v1/deployments:0",
		"a path as the version":    "ConfigMap=../configmaps:0",
		"a subresource":            "ConfigMap=v1/configmaps/status:0",
		"a query":                  "ConfigMap=v1/configmaps?watch=1:0",
		"a path as the group":      "Widget.example.com/v1/x=v1/widgets:0",
		"a space":                  "Config Map=v1/configmaps:0",
		"no stage":                 "Pod=v1/pods",
		"an invalid stage":         "Pod=v1/pods:x",
		"an invalid namespace":     "Pod=v1/pods:0@a/b",
		"a second entry of a kind": "ConfigMap=v2/others:0",
	} {
		if got := parseInventory("ConfigMap=v1/configmaps:0," + text).plain(); got != "ConfigMap=v1/configmaps:0" {
			t.Errorf("%s: got %q", name, got)
		}
	}
}

func TestParseInventory_Limits(t *testing.T) {
	var short, long []string
	for i := range 2 * maxInventoryEntries {
		short = append(short, fmt.Sprintf("K%d=v1/k%d:0", i, i))
		long = append(long, fmt.Sprintf("K%d.%s.x.io=v1/k%d:0", i, strings.Repeat("a", 200), i))
	}
	if n := len(parseInventory(strings.Join(short, ","))); n != maxInventoryEntries {
		t.Errorf("got %d entries", n)
	}
	read := parseInventory(strings.Join(long, ","))
	if n := len(read.plain()); n > maxInventoryBytes || n < maxInventoryBytes-400 {
		t.Errorf("got %d bytes", n)
	}
	for _, entry := range read {
		if entry.resource != strings.ToLower(entry.kind.Kind) {
			t.Errorf("got a truncated entry: %s", entry)
		}
	}
	if all := parseInventory(strings.Repeat("a", 2*maxInventoryBytes)); len(all) > 0 {
		t.Errorf("got %d entries", len(all))
	}
}

// Entries of other kinds are kept as far as they fit, and never displace those of accepted kinds.
func TestInventory_AcceptedEntriesComeFirst(t *testing.T) {
	var others inventory
	for i := range maxInventoryEntries {
		others = append(others, newEntry(schema.GroupKind{Kind: fmt.Sprintf("A%d", i)}, configMaps))
	}
	text, _ := inventory{newEntry(widgetKind.GroupKind, widgets)}.annotation(others, maxInventoryBytes).(string)
	if !strings.HasPrefix(text, "Widget.example.com=v1/widgets:0,A0=v1/configmaps:0,") {
		t.Fatalf("got %.100s", text)
	}
	isWidget := func(kind schema.GroupKind) bool { return kind == widgetKind.GroupKind }
	accepted, rest := parseInventory(text).split(isWidget)
	if len(accepted) != 1 || len(rest) != maxInventoryEntries-1 {
		t.Errorf("got %d accepted and %d other entries", len(accepted), len(rest))
	}
	if text := accepted.annotation(rest, 100).(string); !strings.HasPrefix(text, "Widget") || len(text) > 100 ||
		len(text) < 100-len(rest[0].String()) {
		t.Errorf("with 100 bytes: got %s", text)
	}
}

// The discovery of a kind's group may have been failing since the process started. The inventory and the finalizer are
// kept until the API server reports that the kind is not served. If the mapper reports the failure, they are kept until
// the discovery succeeds, because the API server can serve the kind in another version.
func TestReconcile_UnknownKindIsGoneOnlyIfNotServed(t *testing.T) {
	unavailable := apierrors.NewServiceUnavailable("the API service is down")
	const body = "404 page not found"
	notServed := apierrors.NewGenericServerResponse(404, "list", configMaps.GroupResource(), "", body, 0, true)
	unknown := meta.NewDefaultRESTMapper(nil)
	for name, c := range map[string]struct {
		response error
		mapper   meta.RESTMapper
		deleted  bool // whether the parent is being deleted
		fails    bool
		kept     bool // whether the inventory is kept or, if the parent is being deleted, the finalizer
	}{
		"prune, unavailable":                    {unavailable, unknown, false, true, true},
		"prune, not served":                     {notServed, unknown, false, false, false},
		"prune, served":                         {nil, unknown, false, false, true},
		"cleanup, unavailable":                  {unavailable, unknown, true, true, true},
		"cleanup, not served":                   {notServed, unknown, true, false, false},
		"cleanup, served":                       {nil, unknown, true, false, true},
		"prune, not served, discovery fails":    {notServed, undiscoveredMapper{}, false, true, true},
		"prune, served, discovery fails":        {nil, undiscoveredMapper{}, false, false, true},
		"cleanup, unavailable, discovery fails": {unavailable, undiscoveredMapper{}, true, true, true},
		"cleanup, not served, discovery fails":  {notServed, undiscoveredMapper{}, true, true, true},
		"cleanup, served, but discovery fails":  {nil, undiscoveredMapper{}, true, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			server := newFakeServer(newWidget())
			reconciler, parent := newReconciler(t, Config{Client: server}), newWidget()
			if _, err := reconciler.Reconcile(t.Context(), first, parent, oneStage(newRemoteConfigMap("a"))); err != nil {
				t.Fatal(err)
			}
			server.TakeWrites()
			reconciler.config.Mapper = c.mapper
			if c.response != nil {
				server.PrependReactor("list", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
					return true, nil, c.response
				})
			}
			if c.deleted {
				deleted := metav1.NewTime(time.Now().Add(-2 * unservedPeriod))
				parent.SetDeletionTimestamp(&deleted)
			}
			_, err := reconciler.Reconcile(t.Context(), first, parent, oneStage())
			if _, requeued := dynamiccontroller.RequeueDelay(err); (err != nil && !requeued) != c.fails {
				t.Errorf("got %v", err)
			}
			current := getParent(t, server)
			kept := current.GetAnnotations()[reconciler.names.Inventory()] != ""
			if c.deleted {
				kept = len(current.GetFinalizers()) > 0
			}
			writes := server.TakeWrites()
			if kept != c.kept || slices.Contains(writes, "delete configmaps a") != (c.response == nil) {
				t.Errorf("kept: %t, want %t; wrote %q", kept, c.kept, writes)
			}
		})
	}
}

// A child in such a namespace would never be found again.
func TestReconcile_RefusesNamespacesThatAreNotListed(t *testing.T) {
	for namespace, limit := range map[string]string{"far": "default", "default": "far"} {
		server, parent := newFakeServer(newWidget()), newWidget()
		reconciler := newReconciler(t, Config{Client: server, Namespaces: []string{limit}})
		desired := oneStage(inNamespace(namespace, "a"), inNamespace(limit, "b"))
		_, err := reconciler.Reconcile(t.Context(), first, parent, desired)
		if !errors.Is(err, ErrNamespaceNotListed) || !strings.Contains(err.Error(), "ConfigMap a: namespace "+namespace) {
			t.Errorf("got %v", err)
		}
		if writes := server.TakeWrites(); len(writes) > 0 {
			t.Errorf("wrote %q", writes)
		}
		desired.Stages[0][0].Retain = true // is never listed
		if _, err := reconciler.Reconcile(t.Context(), first, parent, desired); err != nil {
			t.Errorf("retained: %v", err)
		}
	}
}

// A child in a namespace that was removed from Config.Namespaces is not forgotten.
func TestReconcile_KeepsNamespacesThatAreNotListed(t *testing.T) {
	for _, deleted := range []bool{false, true} {
		t.Run(fmt.Sprintf("deleted: %t", deleted), func(t *testing.T) {
			server, parent := newFakeServer(newWidget()), newWidget()
			reconciler := newReconciler(t, Config{Client: server, Namespaces: []string{"default", "far"}})
			if _, err := reconciler.Reconcile(t.Context(), first, parent, oneStage(inNamespace("far", "a"))); err != nil {
				t.Fatal(err)
			}
			if deleted {
				now := metav1.Now()
				parent.SetDeletionTimestamp(&now)
			}
			inventory := parent.GetAnnotations()[reconciler.names.Inventory()]
			server.TakeWrites()
			limited := newReconciler(t, Config{Client: server, Namespaces: []string{"default"}})
			_, err := limited.Reconcile(t.Context(), first, parent.DeepCopy(), oneStage())
			if !errors.Is(err, ErrNamespaceNotListed) || !strings.Contains(err.Error(), "namespace far: ") {
				t.Errorf("got %v", err)
			}
			if writes := server.TakeWrites(); len(writes) > 0 {
				t.Errorf("wrote %q", writes)
			}
			current := getParent(t, server)
			if current.GetAnnotations()[reconciler.names.Inventory()] != inventory || len(current.GetFinalizers()) == 0 {
				t.Errorf("the parent is %v", current)
			}
			_, err = reconciler.Reconcile(t.Context(), first, parent, oneStage())
			failUnlessRequeued(t, err)
			if writes := server.TakeWrites(); !slices.Equal(writes, []string{"delete configmaps a"}) {
				t.Errorf("with the namespace, it wrote %q", writes)
			}
		})
	}
}
