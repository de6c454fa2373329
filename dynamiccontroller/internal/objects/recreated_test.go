package objects

import (
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func version(t *testing.T, projection Projection, uid, resourceVersion, content string) *Record {
	return parse(t, fmt.Sprintf(`{"kind":"K","metadata":{"name":"a","namespace":"n","uid":%q,"resourceVersion":%q,`+
		`"annotations":{"a":%q}},"spec":%q}`, uid, resourceVersion, content, content), projection)
}

// describeChanges names the additions, updates and deletions.
func describeChanges(changes []Change) (kinds []string) {
	for _, c := range changes {
		switch {
		case c.Old == nil:
			kinds = append(kinds, "added")
		case c.New == nil:
			kinds = append(kinds, "deleted")
		default:
			kinds = append(kinds, "updated")
		}
	}
	return kinds
}

func TestStore_RecreatedObjectIsDeletedAndAdded(t *testing.T) {
	want := []string{"deleted", "added"}
	for projection := Keys; projection <= Complete; projection++ {
		// After a restore, the resourceVersion can be the same. Some servers send none.
		for resourceVersion, before := range map[string]string{"1": "1", "2": "1", "": ""} {
			filled := func(uid, resourceVersion string) *Store {
				s := NewStore(projection)
				s.Put(version(t, projection, uid, resourceVersion, "x"))
				return s
			}
			next := version(t, projection, "new", resourceVersion, "x")
			if got := describeChanges(filled("old", before).Put(next)); !slices.Equal(got, want) {
				t.Errorf("projection %d, version %s: Put: %v", projection, resourceVersion, got)
			}
			s, listed := filled("old", before), map[string]*Record{"n/a": next}
			if got := describeChanges(append(s.DeletionsIn("", listed), s.Updates(listed)...)); !slices.Equal(got, want) {
				t.Errorf("projection %d, version %s: list: %v", projection, resourceVersion, got)
			}
			if got := describeChanges(s.Difference(filled("new", resourceVersion), true)); !slices.Equal(got, want) {
				t.Errorf("projection %d, version %s: Difference: %v", projection, resourceVersion, got)
			}
		}
	}
}

// A transform can remove the UID.
func TestStore_UnknownUIDDoesNotCountAsRecreated(t *testing.T) {
	for projection := Keys; projection <= Complete; projection++ {
		s := NewStore(projection)
		s.Put(version(t, projection, "u", "1", "x"))
		if got := describeChanges(s.Put(version(t, projection, "", "2", "x"))); !slices.Equal(got, []string{"updated"}) {
			t.Errorf("projection %d: %v", projection, got)
		}
	}
}

func TestStore_PutComparesContentAtTheSameVersion(t *testing.T) {
	for projection := Metadata; projection <= Complete; projection++ {
		s := NewStore(projection)
		s.Put(version(t, projection, "u", "1", "x"))
		if got := s.Put(version(t, projection, "u", "1", "x")); len(got) != 0 {
			t.Errorf("projection %d: the same content is a change: %v", projection, got)
		}
		next := version(t, projection, "u", "1", "y")
		if got := describeChanges(s.Put(next)); !slices.Equal(got, []string{"updated"}) {
			t.Errorf("projection %d: other content: %v", projection, got)
		}
		if stored, _ := s.Get("n/a"); stored != next {
			t.Errorf("projection %d: the new content is not stored", projection)
		}
	}
}

func TestStore_NilRecordKeepsTheStoredObject(t *testing.T) {
	for projection := Keys; projection <= Complete; projection++ {
		for _, namespace := range []string{"", "n"} {
			s := NewStore(projection)
			s.Put(version(t, projection, "u", "1", "x"))
			other := parse(t, `{"kind":"K","metadata":{"name":"b","namespace":"m","uid":"b","resourceVersion":"1"}}`, projection)
			s.Put(other)
			size, before := s.Size(), s.identities["n/a"]
			listed := map[string]*Record{"n/a": nil, "n/unknown": nil}
			if namespace == "" {
				listed["m/b"] = other
			}
			if changes := append(s.DeletionsIn(namespace, listed), s.Updates(listed)...); len(changes) != 0 {
				t.Errorf("projection %d: changes %v", projection, changes)
			}
			s.Replace(namespace, listed)
			if s.Len() != 2 || !s.Has("n/a") || s.Size() != size || s.identities["n/a"] != before {
				t.Errorf("projection %d: keys %v, size %d instead of %d", projection, s.Keys(), s.Size(), size)
			}
		}
	}
}

func TestStore_Identify(t *testing.T) {
	for projection := Keys; projection <= Complete; projection++ {
		s := NewStore(projection)
		s.Put(version(t, projection, "u", "1", "x"))
		s.Put(parse(t, `{"kind":"K","metadata":{"name":"b","namespace":"m","uid":"v"}}`, projection))
		for name, test := range map[string]struct {
			namespace, metadata string
			want                string
			complete            bool
		}{
			"a UID":                   {"", `"uid":"u"`, "[n/a]", true},
			"another UID":             {"", `"uid":"other"`, "[]", true},
			"no UID":                  {"", `"uid":""`, "[]", false},
			"a key":                   {"", `"name":"a","namespace":"n"`, "[n/a]", true},
			"a key and another UID":   {"", `"name":"a","namespace":"n","uid":"other"`, "[]", true},
			"another key and the UID": {"", `"name":"a","uid":"u"`, "[n/a]", true},
			"another namespace":       {"m", `"uid":"u"`, "[]", true},
			"no namespace":            {"m", `"name":"a"`, "[]", false},
		} {
			item := fmt.Appendf(nil, `{"kind":1,"metadata":{%s}}`, test.metadata)
			keys, complete := s.Identify(test.namespace, []*Record{ParseItem(item, projection, metav1.TypeMeta{})})
			if fmt.Sprint(keys) != test.want || complete != test.complete {
				t.Errorf("projection %d, %s: got %v, %v", projection, name, keys, complete)
			}
		}
		s.Put(parse(t, `{"kind":"K","metadata":{"name":"none","namespace":"n"}}`, projection))
		item := ParseItem([]byte(`{"kind":"K","metadata":{"uid":"other"}}`), projection, metav1.TypeMeta{})
		if keys, complete := s.Identify("", []*Record{item}); len(keys) != 0 || complete {
			t.Errorf("projection %d, a stored object has no UID: got %v, %v", projection, keys, complete)
		}
	}
}
