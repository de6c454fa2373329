package children

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestMarkedUID(t *testing.T) {
	annotate := func(key, value string) func(*unstructured.Unstructured) {
		return func(child *unstructured.Unstructured) {
			child.SetAnnotations(with(child.GetAnnotations(), "platform.example.com/"+key, value))
		}
	}
	for name, test := range map[string]struct {
		change func(child *unstructured.Unstructured)
		want   string
	}{
		"a marked child":                 {func(*unstructured.Unstructured) {}, "widget-uid"},
		"the child of another parent":    {func(c *unstructured.Unstructured) { setMark(c, "second", "widget-uid", "") }, ""},
		"a copy":                         {annotate("self", "other/original"), ""},
		"a retained child":               {annotate("retained-by", "somebody"), ""},
		"a child that was released":      {func(c *unstructured.Unstructured) { c.SetLabels(nil) }, ""},
		"a record that cannot be parsed": {annotate("parent", "{"), ""},
		"a record in a later format": {
			annotate("parent", `{"format":2,"parent":"Widget.example.com/default/first","uid":"widget-uid"}`), "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := newFakeServer(newWidget())
			reconciler := newReconciler(t, Config{Client: server})
			desired := oneStage(newRemoteConfigMap("a"))
			if _, err := reconciler.Reconcile(t.Context(), first, newWidget(), desired); err != nil {
				t.Fatal(err)
			}
			child := getConfigMap(t, server, "other", "a")
			test.change(child)
			parent := &metav1.ObjectMeta{Namespace: "default", Name: "first"}
			got := MarkedUID(child, parent, widgetKind.GroupKind, "platform.example.com")
			if string(got) != test.want {
				t.Errorf("got %q, want %q; the annotations are %v", got, test.want, child.GetAnnotations())
			}
		})
	}
}
