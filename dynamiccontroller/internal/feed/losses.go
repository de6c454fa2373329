package feed

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

// reads is the part of an object's states that determines what a change to it reconciles.
type reads uint8

const (
	readsEverything reads = iota
	// readsMetadata is the metadata without managedFields, resourceVersion and generation. These three change with most
	// writes. A MapFunc must not depend on them; see dynamiccontroller.MapFunc.
	readsMetadata
	readsOwners // the owner references
	readsKey    // the namespace and name
)

// reads returns what the source reads. Functions can read all that the watch keeps. A transform is user code too: it
// determines what is kept.
func (s *Source) reads() reads {
	switch {
	case s.Accepts != nil:
		return readsEverything
	case !s.Watch.Secondary: // a change reconciles the object itself
		return readsKey
	case s.Watch.Transform != nil:
		return readsEverything
	case s.Targets == nil:
		return readsOwners
	case s.Watch.Key.Projection == objects.Metadata:
		return readsMetadata
	default:
		return readsEverything
	}
}

// Loses implements [typewatch.EventHandler].Loses. A dropped state is not lost if the combined change reconciles at
// least the objects that the dropped state would have reconciled. This is the case if one of the states that are
// delivered equals the dropped one in what the source reads. An object that was added and deleted is not delivered.
func Loses(dropped *typewatch.Object, combined typewatch.Change) bool {
	latest := combined.New
	if latest == nil {
		latest = combined.Old
	}
	source := sourceOf(dropped)
	if latest != nil && sourceOf(latest) != source { // other functions are called with the delivered states
		return true
	}
	var delivered []*typewatch.Object
	for _, state := range []*typewatch.Object{combined.Old, combined.New} {
		if state != nil && sourceOf(state) == source && state.View.SameForm(dropped.View) {
			delivered = append(delivered, state)
		}
	}
	return source.loses(dropped, delivered)
}

// loses reports whether the dropped state differs from all delivered states in what the source reads.
func (s *Source) loses(dropped *typewatch.Object, delivered []*typewatch.Object) bool {
	// The object of a record in decoded form can contain anything, and has methods that are user code.
	reads := s.reads()
	if reads != readsKey && slices.ContainsFunc(append(delivered, dropped), isDecoded) {
		return true
	}
	switch reads {
	case readsKey:
		return len(delivered) == 0
	case readsOwners:
		return !s.findsOwners(dropped.Owners(), delivered)
	case readsMetadata:
		return !slices.ContainsFunc(delivered, func(o *typewatch.Object) bool { return sameForMapFunc(o, dropped) })
	default:
		return true
	}
}

func isDecoded(o *typewatch.Object) bool { return o.IsDecoded() }

// findsOwners reports whether each owner that the source reconciles is also an owner in a delivered state.
func (s *Source) findsOwners(owners []objects.Owner, delivered []*typewatch.Object) bool {
	for i := range owners {
		if !s.reconciles(&owners[i]) {
			continue
		}
		if !slices.ContainsFunc(delivered, func(o *typewatch.Object) bool {
			return slices.ContainsFunc(o.Owners(), func(other objects.Owner) bool {
				return s.reconciles(&other) && owners[i].IsSame(&other)
			})
		}) {
			return false
		}
	}
	return true
}

// sameForMapFunc reports whether two states of an object have the same metadata, as far as readsMetadata includes it.
func sameForMapFunc(a, b *typewatch.Object) bool {
	return equality.Semantic.DeepEqual(mappedPart(a), mappedPart(b))
}

func mappedPart(o *typewatch.Object) metav1.ObjectMeta {
	part := *o.Meta()
	part.ResourceVersion, part.Generation, part.ManagedFields = "", 0, nil
	return part
}
