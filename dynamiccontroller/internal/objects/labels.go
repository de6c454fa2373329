package objects

import (
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/json"
)

// Matches reports whether the selector matches the labels of the object. It does not decode the object.
func (r *Record) Matches(selector labels.Selector) bool {
	return selector.Empty() || selector.Matches((*recordLabels)(r))
}

// GetLabels returns the labels.
func (r *Record) GetLabels() map[string]string {
	switch {
	case r.opaque != nil:
		return r.ObjectMeta().Labels
	case r.protobuf:
		return r.unmarshalField(labelsField).Labels
	}
	raw := r.rawAt(r.labels)
	if raw == "" {
		return nil
	}
	var set map[string]string
	if err := json.Unmarshal([]byte(raw), &set); err != nil {
		return r.ObjectMeta().Labels
	}
	return set
}

// recordLabels finds labels in the data of a record.
type recordLabels Record

var _ labels.Labels = (*recordLabels)(nil)

// Has reports whether the object has a label.
func (l *recordLabels) Has(label string) bool {
	_, exists := l.Lookup(label)
	return exists
}

// Get returns the value of a label, or "" if the object does not have the label.
func (l *recordLabels) Get(label string) string {
	value, _ := l.Lookup(label)
	return value
}

// Lookup returns the value of a label, and whether the object has the label.
func (l *recordLabels) Lookup(label string) (value string, exists bool) {
	switch {
	case l.protobuf:
		return l.findProtobuf(label)
	case l.opaque == nil && l.labels == 0:
		return "", false
	}
	if value, exists, ok := l.find(label); ok {
		return value, exists
	}
	value, exists = (*Record)(l).GetLabels()[label]
	return value, exists
}

// find finds a label without decoding the others. If ok is false, the labels must be decoded.
func (l *recordLabels) find(label string) (value string, exists, ok bool) {
	if l.opaque != nil {
		return "", false, false
	}
	m := membersOf(l.data, int(l.labels))
	for m.next() {
		found := m.skip()
		if l.data[found.from] != '"' { // null, or the labels are invalid
			return "", false, false
		}
		key, err := unquote(l.data, m.key)
		if err != nil {
			return "", false, false
		}
		if key != label {
			continue
		}
		// If a key occurs more than once, its last value counts.
		if value, err = unquote(l.data, found); err != nil {
			return "", false, false
		}
		exists = true
	}
	return value, exists, m.state == afterLast
}
