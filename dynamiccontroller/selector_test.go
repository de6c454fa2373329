package dynamiccontroller_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// customSelector is a selector that is not of package labels.
type customSelector struct {
	labels.Selector
	text         string
	empty        bool
	requirements labels.Requirements
	unselectable bool
}

func (s customSelector) String() string { return s.text }
func (s customSelector) Empty() bool    { return s.empty }
func (s customSelector) Requirements() (labels.Requirements, bool) {
	return s.requirements, !s.unselectable
}

func requirements(text string) labels.Requirements {
	selector, err := labels.Parse(text)
	if err != nil {
		panic(err)
	}
	requirements, _ := selector.Requirements()
	return requirements
}

// lists returns the selectors with which a type was listed, without repetitions.
func (w *world) lists(gvr schema.GroupVersionResource) (selectors []labels.Selector) {
	known := map[string]bool{}
	for _, action := range w.client.Actions() {
		list, ok := action.(clienttesting.ListAction)
		if ok && action.GetResource() == gvr && !known[list.GetListRestrictions().Labels.String()] {
			known[list.GetListRestrictions().Labels.String()] = true
			selectors = append(selectors, list.GetListRestrictions().Labels)
		}
	}
	return selectors
}

func TestWithLabelSelector(t *testing.T) {
	ofNil, err := metav1.LabelSelectorAsSelector(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name     string
		selector labels.Selector
		want     *string // the selector of the list; nil if it must match nothing
		err      string
	}{
		{name: "nil serves everything", selector: nil, want: ptr.To("")},
		{name: "everything", selector: labels.Everything(), want: ptr.To("")},
		{name: "no requirements", selector: labels.NewSelector(), want: ptr.To("")},
		{name: "a label", selector: labels.SelectorFromSet(labels.Set{"a": "b"}), want: ptr.To("a=b")},
		{name: "nothing", selector: labels.Nothing()},
		{name: "what metav1 makes of nil", selector: ofNil},
		{name: "a custom selector that matches nothing", selector: customSelector{unselectable: true}},
		{name: "a custom selector that matches nothing and has a text", selector: customSelector{text: "a=b", unselectable: true}},
		{name: "a custom selector without a text", selector: customSelector{requirements: requirements("a=b,c")}, want: ptr.To("a=b,c")},
		{name: "a custom selector with its own text", selector: customSelector{text: "c", requirements: requirements("c")}, want: ptr.To("c")},
		{name: "a custom selector without text and requirements", selector: customSelector{}, err: "has no text"},
		{name: "a nil pointer", selector: (*customSelector)(nil), err: "panicked"},
	} {
		handler := func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return nil }
		check := func(t *testing.T, w *world, gvr schema.GroupVersionResource, err error) {
			t.Helper()
			switch {
			case test.err != "":
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("got %v, want an error with %q", err, test.err)
				}
				return
			case err != nil:
				t.Fatal(err)
			}
			synctest.Wait()
			lists := w.lists(gvr)
			if len(lists) != 1 {
				t.Fatalf("listed with the selectors %v", lists)
			}
			if test.want != nil {
				if got := lists[0].String(); got != *test.want {
					t.Errorf("listed with the selector %q, want %q", got, *test.want)
				}
				return
			}
			for _, set := range []labels.Set{nil, {"a": "b"}, {"nothing": ""}} {
				if lists[0].Matches(set) {
					t.Errorf("listed with the selector %q, which matches %v", lists[0], set)
				}
			}
		}
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 3, dynamiccontroller.Config{ResyncPeriod: -1})
				stop := w.run()
				option := dynamiccontroller.WithLabelSelector(test.selector)
				check(t, w, w.types[0], w.controller.StartServingGVK(t.Context(), w.types[0], handler, option))
				w.serve(w.types[1], handler)
				check(t, w, w.types[2], w.controller.AlsoWatch(t.Context(), w.types[1], dynamiccontroller.Owns(w.types[2], option)))
				mapFunc := func(runtime.Object) []string { return nil }
				w.client.ClearActions()
				w.serve(w.types[1], handler)
				check(t, w, w.types[2], w.controller.AlsoWatch(t.Context(), w.types[1], dynamiccontroller.Watches(w.types[2], mapFunc, option)))
				if err := stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
