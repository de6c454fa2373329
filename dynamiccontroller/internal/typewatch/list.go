package typewatch

import (
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
)

// list is a list that a reflector is receiving. While a streaming list is being received, its objects can change. If an
// object can no longer be used, its usable form stays in the list.
type list struct {
	items    map[string]*objects.Record // by key
	unusable map[string]*objects.Record // the objects that cannot be used, by the key of the record
}

func newList() list {
	return list{items: map[string]*objects.Record{}, unusable: map[string]*objects.Record{}}
}

// put adds or replaces an object.
func (l *list) put(item *objects.Record) {
	key := item.Key()
	if item.Unusable() == nil {
		l.items[key] = item
		l.removeUnusable(item)
		return
	}
	if usable := l.items[key]; usable != nil && !isSameObject(usable, item) {
		delete(l.items, key)
	}
	l.unusable[key] = item
}

// remove removes a deleted object. It returns an error if the deleted object is unusable and the list has no usable
// form of it with this key, because the deletion can be that of an object with another key.
func (l *list) remove(deleted *objects.Record) error {
	key := deleted.Key()
	usable := l.items[key]
	if deleted.Unusable() != nil && (usable == nil || !isSameObject(usable, deleted)) {
		return unidentifiedDeletion(deleted)
	}
	delete(l.items, key)
	l.removeUnusable(deleted)
	return nil
}

// removeUnusable removes the unusable form of an object, if any.
func (l *list) removeUnusable(item *objects.Record) {
	if len(l.unusable) > 0 {
		delete(l.unusable, item.Key())
		delete(l.unusable, objects.UIDKey(item.GetUID()))
	}
}

// sortedUnusable returns the unusable objects, sorted by key, so that the same list always has the same result.
func (l *list) sortedUnusable() []*objects.Record {
	return slices.SortedFunc(maps.Values(l.unusable), func(a, b *objects.Record) int {
		return strings.Compare(a.Key(), b.Key())
	})
}

// isSameObject reports whether two objects with the same key also have the same UID. An unknown UID counts as equal.
func isSameObject(a, b *objects.Record) bool {
	return a.GetUID() == b.GetUID() || a.GetUID() == "" || b.GetUID() == ""
}

// deletedRecord returns the record of a deleted object. Only its identity and its resourceVersion matter.
func deletedRecord(obj runtime.Object) *objects.Record {
	if deleted, ok := obj.(*objects.Record); ok {
		return deleted
	}
	deleted, err := objects.Encode(obj, objects.Keys, "")
	if err != nil {
		return objects.Unusable(obj, err)
	}
	return deleted
}
