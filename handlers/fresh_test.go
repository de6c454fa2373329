package handlers

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// widgetAt is the widget at a version, as one UID.
func widgetAt(uid, version string) *unstructured.Unstructured {
	widget := newWidget()
	widget.SetUID(types.UID(uid))
	widget.SetResourceVersion(version)
	return widget
}

// What a cache showed before this process led is not acted on.
func TestFreshReturnsWhatIsNewer(t *testing.T) {
	for name, c := range map[string]struct {
		shown, there *unstructured.Unstructured
		want         string // the version, or nothing
	}{
		"the cache is as new":              {widgetAt("a", "5"), widgetAt("a", "5"), "5"},
		"etcd was restored":                {widgetAt("a", "6"), widgetAt("a", "5"), "5"},
		"nobody can tell what is older":    {widgetAt("a", "x"), widgetAt("a", "y"), "y"},
		"the cache is older":               {widgetAt("a", "5"), widgetAt("a", "10"), "10"},
		"the cache shows the one before":   {widgetAt("a", "5"), widgetAt("b", "10"), "10"},
		"the cache shows one that is gone": {widgetAt("a", "5"), nil, ""},
		"the cache does not show it":       {nil, widgetAt("a", "5"), ""},
	} {
		read := func(widget *unstructured.Unstructured) *fakeServer {
			if widget == nil {
				return newFakeServer()
			}
			return newFakeServer(widget)
		}
		got, err := NewFresh(read(c.there), Live(read(c.shown))).Get(t.Context(), widgets, "default", "first")
		switch {
		case c.want == "" && !apierrors.IsNotFound(err):
			t.Errorf("%s: got %v, %v", name, got, err)
		case c.want != "" && (err != nil || got.GetResourceVersion() != c.want):
			t.Errorf("%s: got %v, %v, want version %s", name, got, err, c.want)
		}
	}
}

// It asks until the cache has caught up, and again in the next term and for the next object of the name.
func TestFreshAsksUntilTheCacheHasCaughtUp(t *testing.T) {
	shown, there := newFakeServer(widgetAt("a", "5")), newFakeServer(widgetAt("a", "10"))
	fresh := NewFresh(there, Live(shown))
	get := func() (asked int) {
		before := len(there.Actions())
		_, _ = fresh.Get(t.Context(), widgets, "default", "first")
		return len(there.Actions()) - before
	}
	replace := func(with *unstructured.Unstructured) {
		objects := resource(shown, widgets, "default")
		if err := objects.Delete(t.Context(), "first", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		get()
		if _, err := objects.Create(t.Context(), with, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for step, want := range []int{1, 1} {
		if n := get(); n != want {
			t.Errorf("it lags, call %d: %d requests", step, n)
		}
	}
	shown = newFakeServer(widgetAt("a", "10"))
	fresh.cache = Live(shown)
	for step, want := range []int{1, 0, 0} {
		if n := get(); n != want {
			t.Errorf("it has caught up, call %d: %d requests", step, n)
		}
	}
	fresh.ForgetAll()
	for step, want := range []int{1, 0} {
		if n := get(); n != want {
			t.Errorf("the next term, call %d: %d requests", step, n)
		}
	}
	replace(widgetAt("b", "20"))
	if n := get(); n != 1 {
		t.Errorf("the next object of the name: %d requests", n)
	}
}
