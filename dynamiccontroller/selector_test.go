package dynamiccontroller_test

import (
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

// customSelector is a selector that is implemented outside package labels.
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

// lists returns the distinct selectors that were used to list a type.
func (f *fixture) lists(gvr schema.GroupVersionResource) (selectors []labels.Selector) {
	known := map[string]bool{}
	for _, action := range f.client.Actions() {
		list, ok := action.(clienttesting.ListAction)
		if ok && action.GetResource() == gvr && !known[list.GetListRestrictions().Labels.String()] {
			known[list.GetListRestrictions().Labels.String()] = true
			selectors = append(selectors, list.GetListRestrictions().Labels)
		}
	}
	return selectors
}

// labelSelectorCase is a case of TestWithLabelSelector.
type labelSelectorCase struct {
	name     string
	selector labels.Selector
	want     *string // the selector of the list; nil if it must match nothing
	err      string
}

// check checks the result of serving or watching the type with the selector: the returned error err, and the selector
// of the last list.
func (test labelSelectorCase) check(t *testing.T, f *fixture, gvr schema.GroupVersionResource, err error) {
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
	lists := f.lists(gvr)
	if len(lists) == 0 {
		t.Fatal("the controller did not list the type")
	}
	list := lists[len(lists)-1]
	if test.want != nil {
		if got := list.String(); got != *test.want {
			t.Errorf("the type was listed with the selector %q, want %q", got, *test.want)
		}
		return
	}
	for _, set := range []labels.Set{nil, {"a": "b"}, {"nothing": ""}} {
		if list.Matches(set) {
			t.Errorf("the type was listed with the selector %q, which matches %v, want one that matches nothing", list, set)
		}
	}
}

func TestWithLabelSelector(t *testing.T) {
	ofNil, err := metav1.LabelSelectorAsSelector(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []labelSelectorCase{
		{name: "nil serves everything", selector: nil, want: ptr.To("")},
		{name: "everything", selector: labels.Everything(), want: ptr.To("")},
		{name: "no requirements", selector: labels.NewSelector(), want: ptr.To("")},
		{name: "a label", selector: labels.SelectorFromSet(labels.Set{"a": "b"}), want: ptr.To("a=b")},
		{name: "nothing", selector: labels.Nothing()},
		{name: "the selector of a nil metav1.LabelSelector", selector: ofNil},
		{name: "a custom selector that matches nothing", selector: customSelector{unselectable: true}},
		{
			name:     "a custom selector that matches nothing and has a text",
			selector: customSelector{text: "a=b", unselectable: true},
		},
		{
			name:     "a custom selector without a text",
			selector: customSelector{requirements: requirements("a=b,c")},
			want:     ptr.To("a=b,c"),
		},
		{
			name:     "a custom selector with its own text",
			selector: customSelector{text: "c", requirements: requirements("c")},
			want:     ptr.To("c"),
		},
		{name: "a custom selector without text and requirements", selector: customSelector{}, err: "returns an empty string"},
		{name: "a nil pointer", selector: (*customSelector)(nil), err: "panicked"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, 3, dynamiccontroller.Config{ResyncPeriod: -1})
				stop := f.run()
				option := dynamiccontroller.WithLabelSelector(test.selector)
				test.check(t, f, f.types[0], f.controller.StartServingGVK(t.Context(), f.types[0], succeed, option))
				f.serve(f.types[1], succeed)
				owns := dynamiccontroller.Owns(f.types[2], option)
				test.check(t, f, f.types[2], f.controller.AddWatches(t.Context(), f.types[1], owns))
				f.client.ClearActions()
				f.serve(f.types[1], succeed)
				watches := dynamiccontroller.Watches(f.types[2], mapTo(), option)
				test.check(t, f, f.types[2], f.controller.AddWatches(t.Context(), f.types[1], watches))
				stop()
			})
		})
	}
}

// customFields is a field selector that is implemented outside package fields.
type customFields struct{ fields.Selector }

// fieldSelectors returns the distinct field selectors of all lists and watches of a type.
func (f *fixture) fieldSelectors(gvr schema.GroupVersionResource) (selectors map[string]bool, watched bool) {
	selectors = map[string]bool{}
	for _, action := range f.client.Actions() {
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

// fieldSelectorCase is a case of TestWithFieldSelector.
type fieldSelectorCase struct {
	name     string
	selector fields.Selector
	want     string
	err      string
}

// run uses the selector for the served type, an owned type and a watched type.
func (test fieldSelectorCase) run(t *testing.T) {
	f := newFixture(t, 3, dynamiccontroller.Config{ResyncPeriod: -1})
	stop := f.run()
	option := dynamiccontroller.WithFieldSelector(test.selector)
	for i, watch := range []dynamiccontroller.ServeOption{
		option, dynamiccontroller.Owns(f.types[1], option), dynamiccontroller.Watches(f.types[2], mapTo(), option),
	} {
		err := f.controller.StartServingGVK(t.Context(), f.types[0], succeed, watch)
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
		got, watched := f.fieldSelectors(f.types[i])
		if !watched || len(got) != 1 || !got[test.want] {
			t.Errorf("%T: requests with the field selectors %v, want %q; watched: %t", watch, got, test.want, watched)
		}
		f.client.ClearActions()
	}
	stop()
}

func TestWithFieldSelector(t *testing.T) {
	name := func(name string) fields.Selector { return fields.OneTermEqualSelector("metadata.name", name) }
	field, notField := fields.OneTermEqualSelector, fields.OneTermNotEqualSelector
	const none = "metadata.name!=nothing,metadata.name=nothing"
	for _, test := range []fieldSelectorCase{
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
		t.Run(test.name, func(t *testing.T) { synctest.Test(t, test.run) })
	}
}

func TestS6_WatchesAreSharedByFieldSelector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 3, dynamiccontroller.Config{ResyncPeriod: -1})
		child := f.types[2]
		stop := f.run()
		owns := func(set fields.Set) dynamiccontroller.Watch {
			return dynamiccontroller.Owns(child, dynamiccontroller.WithFieldSelector(fields.SelectorFromSet(set)))
		}
		a, b := fields.Set{"metadata.name": "a", "spec.x": "1", "spec.y": "2"}, fields.Set{"metadata.name": "b"}
		f.serve(f.types[0], succeed, owns(a))
		f.serve(f.types[1], succeed, owns(a))
		if n := f.controller.WatchesOf(child); n != 1 {
			t.Errorf("%d watches for the same selector, want 1", n)
		}
		f.serve(f.types[1], succeed, owns(a), owns(b), dynamiccontroller.Owns(child))
		if n := f.controller.WatchesOf(child); n != 3 {
			t.Errorf("%d watches for three selectors, want 3", n)
		}
		if n := len(f.status(f.types[1]).Secondaries); n != 3 {
			t.Errorf("%d watches in the status, want 3", n)
		}
		stop()
	})
}
