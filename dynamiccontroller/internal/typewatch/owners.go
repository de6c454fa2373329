package typewatch

import (
	"reflect"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
)

// Owner is what an object's owner reference says.
type Owner struct {
	UID        types.UID
	Controller bool
	// Keys are those that the owner may have: it is in no namespace or in the object's.
	Keys []string
}

// ownersOfChange are those of the object of a change, before and after it, for all who hear of it: a type may have a thousand
// owning ones, and to parse a whole object's references takes longer than to look the owner up.
type ownersOfChange struct {
	known [2]struct {
		of     any
		owners []Owner
	}
	next int
}

// Owners are those of an object that the sink is told of. It may be called by the sink's funcs and by nobody else.
func (n *Need) Owners(obj any) []Owner { return n.shared.feed.owners.of(obj) }

func (o *ownersOfChange) of(obj any) []Owner {
	for i := range o.known {
		if obj != nil && o.known[i].of == obj {
			return o.known[i].owners
		}
	}
	owners := parseOwners(obj)
	// Objects are never changed, so that a pointer tells them. A transform may make anything of them.
	if obj != nil && reflect.TypeOf(obj).Kind() == reflect.Pointer {
		o.known[o.next].of, o.known[o.next].owners = obj, owners
		o.next = (o.next + 1) % len(o.known)
	}
	return owners
}

// forget keeps no object in memory.
func (o *ownersOfChange) forget() { *o = ownersOfChange{} }

func parseOwners(obj any) []Owner {
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil
	}
	references := m.GetOwnerReferences()
	owners := make([]Owner, len(references))
	for i, r := range references {
		owners[i] = Owner{UID: r.UID, Controller: r.Controller != nil && *r.Controller, Keys: []string{r.Name}}
		if namespace := m.GetNamespace(); namespace != "" {
			owners[i].Keys = append(owners[i].Keys, namespace+"/"+r.Name)
		}
	}
	return owners
}
