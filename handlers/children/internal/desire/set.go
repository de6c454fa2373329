package desire

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/dynamic-controller/engine/handlers/children/internal/decide"
)

// ErrNamespaceNotListed is exported by package children.
var ErrNamespaceNotListed = errors.New("the controller is limited to other namespaces")

// ErrKindNotListed is returned for a child that could not be pruned later.
var ErrKindNotListed = errors.New("the kind must be in children.Config.Kinds")

// ErrInvalidNamespace is the error of a child whose namespace would make the inventory malformed.
var ErrInvalidNamespace = errors.New("invalid namespace")

// Input is what the children depend on, apart from Desired.
type Input struct {
	Parent *decide.Parent
	// Resource is the resource of the parent.
	Resource schema.GroupVersionResource
	// Bucket is the bucket of the parent's type. It is used if Parent.Buckets is set.
	Bucket string
	// Kinds maps the kinds that children can have to whether they can be outside the parent's namespace.
	Kinds map[schema.GroupKind]bool
	// Namespaces lists the namespaces in which children can be, unless they are retained. Empty means all.
	Namespaces []string
	Mapper     Mapper
	// Namespace is called only if a marked child is not retained.
	Namespace decide.Namespace
}

// Mapper returns what the discovery of the API server shows about kinds.
type Mapper interface {
	// RESTMapping returns the resource and the scope of a kind, like meta.RESTMapper.
	RESTMapping(kind schema.GroupKind, versions ...string) (*meta.RESTMapping, error)
	// Verbs returns the verbs that the API server supports for a resource.
	Verbs(resource schema.GroupVersionResource) ([]string, error)
	// IsUnmapped reports whether an error means that the kind is unknown, or that the discovery of its group fails, as
	// opposed to a failed lookup.
	IsUnmapped(err error) bool
}

// Key identifies a child regardless of its API version.
type Key = decide.Key

// Child is a desired child.
type Child struct {
	Spec
	Key
	// Stage and Group determine when the child is applied. Groups are parts of a stage.
	Stage, Group int
	// Err is why the child cannot be applied: the mapper lacks its kind, its kind is not supported, or its namespace is
	// invalid.
	Err error
	// Ready is the child as package decide uses it. It is nil if the mapper lacks the kind, or if the kind is not
	// supported. The same applies to Mapping.
	Ready   *decide.Child
	Mapping *meta.RESTMapping
	Size    int64 // the size of the configuration in bytes, as JSON
}

// NeedsWitness reports whether deleting the child along with its parent depends on the witness. Ready must not be nil.
func (c *Child) NeedsWitness() bool { return c.Ready.Marked && !c.Ready.Retain }

// Set contains the desired children of a parent.
type Set struct {
	Stages       [][]*Child
	Keys         map[Key]bool                           // of the children whose kinds are known
	Mappings     map[schema.GroupKind]*meta.RESTMapping // the known kinds in the desired versions
	Namespaces   map[schema.GroupKind]sets.Set[string]  // excludes the parent's, and those of retained children
	NeedsCleanUp bool                                   // whether the parent needs the finalizer
	NeedsWitness bool                                   // whether the parent needs a witness
}

// New returns the desired children. The error joins the errors of all invalid children. If the mapper lacks the kind of
// a child, or the kind is not supported, that is not such an error, but the error of the child.
func New(input Input, desired Desired) (*Set, error) {
	s := &Set{
		Keys: map[Key]bool{}, Mappings: map[schema.GroupKind]*meta.RESTMapping{},
		Namespaces:   map[schema.GroupKind]sets.Set[string]{},
		NeedsCleanUp: len(desired.Stages) > 1,
	}
	errs := s.addKinds(input, desired.Kinds)
	for stage, specs := range desired.Stages {
		var children []*Child
		for _, spec := range specs {
			kind := spec.Object.GroupVersionKind().GroupKind()
			child, err := input.newChild(spec, stage)
			switch {
			case input.Mapper.IsUnmapped(err), errors.Is(err, ErrKindNotSupported):
				child = &Child{Spec: spec, Key: Key{Kind: kind, Name: decide.NameOf(spec.Object)}, Err: err}
				child.Stage, child.Group = stage, groupOf(kind)
				err = nil
			case err == nil:
				err = s.add(input, child)
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("%s %s: %w", kind, spec.Object.GetName(), err))
				continue
			}
			children = append(children, child)
		}
		s.Stages = append(s.Stages, children)
	}
	return s, errors.Join(errs...)
}

// addKinds adds the kinds of the children that other calls can desire.
func (s *Set) addKinds(input Input, kinds []schema.GroupVersionKind) (errs []error) {
	for _, gvk := range kinds {
		kind := gvk.GroupKind()
		if _, listed := input.Kinds[kind]; !listed {
			errs = append(errs, fmt.Errorf("desired kind %s: %w", kind, ErrKindNotListed))
			continue
		}
		switch mapping, err := input.Mapper.RESTMapping(kind, gvk.Version); {
		case err == nil:
			s.Mappings[kind] = mapping
		case !input.Mapper.IsUnmapped(err):
			errs = append(errs, fmt.Errorf("find the resource for %s: %w", kind, err))
		}
	}
	return errs
}

// add adds a child. It returns an error if the child must not be in the set.
func (s *Set) add(input Input, child *Child) error {
	parent, resource := input.Parent, child.Ready.Resource
	switch known := s.Mappings[child.Kind]; {
	case resource == input.Resource && child.Name == decide.NameOf(parent):
		return errors.New("must not be the parent itself")
	case s.Keys[child.Key]:
		return errors.New("must not be desired twice")
	case known != nil && known.Resource != resource:
		return fmt.Errorf("its kind must not be desired in two versions, %s and %s",
			known.Resource.Version, resource.Version)
	}
	s.Keys[child.Key] = true
	s.Mappings[child.Kind] = child.Mapping
	s.NeedsCleanUp = s.NeedsCleanUp || child.NeedsWitness()
	namespace := child.Ready.Template.GetNamespace()
	if namespace != "" && namespace != parent.GetNamespace() && !child.Retain {
		if problems := content.IsDNS1123Label(namespace); len(problems) > 0 {
			child.Err = fmt.Errorf("%w: %q: %s", ErrInvalidNamespace, namespace, problems[0])
			return nil
		}
		if s.Namespaces[child.Kind] == nil {
			s.Namespaces[child.Kind] = sets.New[string]()
		}
		s.Namespaces[child.Kind].Insert(namespace)
	}
	s.NeedsWitness = s.NeedsWitness || child.NeedsWitness()
	return nil
}
