package dynamiccontroller_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
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
		{name: "the selector of a nil metav1.LabelSelector", selector: ofNil},
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
			if len(lists) == 0 {
				t.Fatal("the type was not listed")
			}
			list := lists[len(lists)-1] // the others are probes for a single object, which have no selector
			if test.want != nil {
				if got := list.String(); got != *test.want {
					t.Errorf("listed with the selector %q, want %q", got, *test.want)
				}
				return
			}
			for _, set := range []labels.Set{nil, {"a": "b"}, {"nothing": ""}} {
				if list.Matches(set) {
					t.Errorf("listed with the selector %q, which matches %v", list, set)
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
				owns := dynamiccontroller.Owns(w.types[2], option)
				check(t, w, w.types[2], w.controller.AddWatches(t.Context(), w.types[1], owns))
				mapFunc := func(context.Context, dynamiccontroller.Object) []string { return nil }
				w.client.ClearActions()
				w.serve(w.types[1], handler)
				watches := dynamiccontroller.Watches(w.types[2], mapFunc, option)
				check(t, w, w.types[2], w.controller.AddWatches(t.Context(), w.types[1], watches))
				if err := stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// customFields is a field selector that is not of package fields.
type customFields struct{ fields.Selector }

// fieldSelectors returns the field selectors of all lists and watches of a type, without repetitions.
func (w *world) fieldSelectors(gvr schema.GroupVersionResource) (selectors map[string]bool, watched bool) {
	selectors = map[string]bool{}
	for _, action := range w.client.Actions() {
		if action.GetResource() != gvr {
			continue
		}
		switch action := action.(type) {
		case clienttesting.ListAction:
			selectors[action.GetListRestrictions().Fields.String()] = true
		case clienttesting.WatchAction:
			watched = true
			selectors[action.GetWatchRestrictions().Fields.String()] = true
		}
	}
	return selectors, watched
}

func TestWithFieldSelector(t *testing.T) {
	name := func(name string) fields.Selector { return fields.OneTermEqualSelector("metadata.name", name) }
	field, notField := fields.OneTermEqualSelector, fields.OneTermNotEqualSelector
	const none = "metadata.name!=nothing,metadata.name=nothing"
	for _, test := range []struct {
		name     string
		selector fields.Selector
		want     string
		err      string
	}{
		{name: "nil selects everything"},
		{name: "everything", selector: fields.Everything()},
		{name: "no fields", selector: fields.SelectorFromSet(nil)},
		{name: "a field", selector: name("a"), want: "metadata.name=a"},
		{name: "a field that differs", selector: notField("spec.x", "a"), want: "spec.x!=a"},
		{name: "an empty value", selector: field("spec.x", ""), want: "spec.x="},
		{name: "a value that needs escaping", selector: field("spec.x", `a,b=\`), want: `spec.x=a\,b\=\\`},
		{name: "sorted terms", selector: fields.AndSelectors(field("b", "2"), field("a", "1")), want: "a=1,b=2"},
		{name: "everything and a field", selector: fields.AndSelectors(fields.Everything(), field("a", "1")), want: "a=1"},
		{name: "a contradiction", selector: fields.AndSelectors(field("a", "2"), field("a", "1")), want: "a=1,a=2"},
		{name: "nothing", selector: fields.Nothing(), want: none},
		{name: "nothing and a field", selector: fields.AndSelectors(name("a"), fields.Nothing()), want: none},
		{name: "nothing and a field that differs", want: none,
			selector: fields.AndSelectors(notField("a", ""), fields.Nothing(), notField("a", "?"))},
		{name: "a custom selector", selector: customFields{name("a")}, want: "metadata.name=a"},
		{name: "a nil pointer", selector: (*customFields)(nil), err: "panicked"},
		{name: "a custom selector without an implementation", selector: customFields{}, err: "panicked"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 3, dynamiccontroller.Config{ResyncPeriod: -1})
				stop := w.run()
				option := dynamiccontroller.WithFieldSelector(test.selector)
				mapFunc := func(context.Context, dynamiccontroller.Object) []string { return nil }
				for i, watch := range []dynamiccontroller.ServeOption{
					option, dynamiccontroller.Owns(w.types[1], option), dynamiccontroller.Watches(w.types[2], mapFunc, option),
				} {
					err := w.controller.StartServingGVK(t.Context(), w.types[0], succeed, watch)
					if test.err != "" {
						if err == nil || !strings.Contains(err.Error(), test.err) {
							t.Errorf("got %v, want an error with %q", err, test.err)
						}
						continue
					}
					if err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
					got, watched := w.fieldSelectors(w.types[i])
					if test.want != "" {
						delete(got, "") // of the request that looks for a single object
					}
					if !watched || len(got) != 1 || !got[test.want] {
						t.Errorf("%T: requests with the field selectors %v, want %q; watched: %t", watch, got, test.want, watched)
					}
					w.client.ClearActions()
				}
				if err := stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestS6_WatchesAreSharedByFieldSelector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, dynamiccontroller.Config{ResyncPeriod: -1})
		child := w.types[2]
		stop := w.run()
		owns := func(set fields.Set) dynamiccontroller.Watch {
			return dynamiccontroller.Owns(child, dynamiccontroller.WithFieldSelector(fields.SelectorFromSet(set)))
		}
		a, b := fields.Set{"metadata.name": "a", "spec.x": "1", "spec.y": "2"}, fields.Set{"metadata.name": "b"}
		w.serve(w.types[0], succeed, owns(a))
		w.serve(w.types[1], succeed, owns(a))
		if n := w.controller.WatchesOf(child); n != 1 {
			t.Errorf("%d watches for the same selector", n)
		}
		w.serve(w.types[1], succeed, owns(a), owns(b), dynamiccontroller.Owns(child))
		if n := w.controller.WatchesOf(child); n != 3 {
			t.Errorf("%d watches for three selectors", n)
		}
		if n := len(w.status(w.types[1]).Secondaries); n != 3 {
			t.Errorf("%d watches in the status", n)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
