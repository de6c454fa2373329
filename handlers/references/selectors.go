package references

import (
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	operator "k8s.io/apimachinery/pkg/selection"
)

// query is a label selector, prepared for the index.
type query struct {
	labels.Selector
	// required holds the labels of each requirement that an object meets by having one of them. An object matches the
	// selector only if it meets all requirements.
	required [][]label
}

// label is a label with a value.
type label struct{ key, value string }

// newQuery returns a query for a selector. It calls methods of the selector, which can be user code.
func newQuery(selector labels.Selector) *query {
	q := &query{Selector: selector}
	requirements, _ := selector.Requirements()
	for _, r := range requirements {
		switch r.Operator() {
		case operator.In, operator.Equals, operator.DoubleEquals:
			values := r.ValuesUnsorted()
			slices.Sort(values)
			var alternatives []label
			for _, value := range slices.Compact(values) {
				alternatives = append(alternatives, label{r.Key(), value})
			}
			q.required = append(q.required, alternatives)
		}
	}
	return q
}

// selectorIndex holds the targets of a type in a namespace that have selectors. A selector is evaluated only for
// objects with a label that it requires.
type selectorIndex struct {
	bySelector map[string]*target
	byLabel    map[label][]*target // those that require this label or another one; see target.labels
	others     []*target           // those that require no label
}

func newSelectorIndex() *selectorIndex {
	return &selectorIndex{bySelector: map[string]*target{}, byLabel: map[label][]*target{}}
}

func (x *selectorIndex) add(to *target, q *query) {
	x.bySelector[to.selection.selector] = to
	if to.labels = x.mostSelective(q.required); to.labels == nil {
		x.others = append(x.others, to)
	}
	for _, l := range to.labels {
		x.byLabel[l] = append(x.byLabel[l], to)
	}
}

// mostSelective returns the labels of the requirement that the fewest other targets share. Many selectors can require
// the same label, such as that of an application, and differ in another one.
func (x *selectorIndex) mostSelective(required [][]label) (best []label) {
	fewest := 0
	for _, alternatives := range required {
		n := len(alternatives)
		for _, l := range alternatives {
			n += len(x.byLabel[l])
		}
		if best == nil || n < fewest {
			best, fewest = alternatives, n
		}
	}
	return best
}

func (x *selectorIndex) remove(to *target) {
	delete(x.bySelector, to.selection.selector)
	if to.labels == nil {
		x.others = without(x.others, to)
	}
	for _, l := range to.labels {
		if x.byLabel[l] = without(x.byLabel[l], to); len(x.byLabel[l]) == 0 {
			delete(x.byLabel, l)
		}
	}
}

// without removes a target. It changes the order of the others.
func without(targets []*target, removed *target) []*target {
	if i := slices.Index(targets, removed); i >= 0 {
		last := len(targets) - 1
		targets[i], targets[last] = targets[last], nil
		targets = targets[:last]
	}
	return targets
}

// appendCandidates appends the targets whose selectors can match an object with the labels.
func (x *selectorIndex) appendCandidates(candidates []*target, set labels.Set) []*target {
	candidates = append(candidates, x.others...)
	if len(x.byLabel) == 0 {
		return candidates
	}
	for key, value := range set {
		candidates = append(candidates, x.byLabel[label{key, value}]...)
	}
	return candidates
}
