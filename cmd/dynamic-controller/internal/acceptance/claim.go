package acceptance

import (
	"cmp"
	"slices"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// claim is a Blueprint's claim to a type.
type claim struct {
	crd string // name of the CustomResourceDefinition
	// named reports whether the Blueprint names the CustomResourceDefinition with spec.type.crd. Otherwise the platform
	// creates it from spec.type.
	named    bool
	deleting bool // the Blueprint is being deleted
	since    int64
	name     string
	uid      types.UID
	memory   int64 // estimated memory of the spec
}

// claimRank ranks the claims to one type. The oldest claim with the lowest rank holds the type, unless it is
// unqualified.
type claimRank int

const (
	// reserved: the platform created the CustomResourceDefinition for this Blueprint, or for an earlier one of the same
	// name.
	reserved claimRank = iota
	// allowed: somebody else created the CustomResourceDefinition, and it allows this Blueprint.
	allowed
	// established: the type does not exist, and a spec of this Blueprint has been accepted before.
	established
	// candidate: the type does not exist, and this Blueprint would be accepted.
	candidate
	// unqualified: this Blueprint must not serve the type, or is rejected for other reasons and was never accepted.
	unqualified
)

// rank returns the rank of the claim. crd is nil if the claimed CustomResourceDefinition does not exist. stored reports
// whether an accepted spec of the Blueprint is stored, and faulty whether the Blueprint is rejected for reasons other
// than a claim.
func (c claim) rank(crd *apiextensionsv1.CustomResourceDefinition, stored, faulty bool) claimRank {
	switch {
	case isOwnedBy(crd, c.uid) || crd != nil && crd.Annotations[ownerNameAnnotation] == c.name:
		return reserved
	case crd != nil && c.named && allows(crd, c.name):
		return allowed
	case crd == nil && stored:
		return established
	case crd == nil && !c.named && !c.deleting && !faulty:
		return candidate
	}
	return unqualified
}

// claimOf reads a claim without decoding the whole Blueprint.
func claimOf(object *unstructured.Unstructured) claim {
	field := func(name string) string {
		s, _, _ := unstructured.NestedString(object.Object, "spec", "type", name)
		return s
	}
	return claim{
		named:    field("crd") != "",
		deleting: object.GetDeletionTimestamp() != nil,
		crd: blueprint.DefinitionName(&blueprint.Blueprint{Spec: blueprint.Spec{Type: blueprint.Type{
			CRD: field("crd"), Group: field("group"), Kind: field("kind"), Plural: field("plural"),
		}}}),
		since: object.GetCreationTimestamp().Unix(),
		name:  object.GetName(),
		uid:   object.GetUID(),
	}
}

// compareAge orders claims from oldest to newest. Claims of the same second are ordered by name, so that the order is
// the same on all replicas.
func compareAge(a, b claim) int {
	return cmp.Or(cmp.Compare(a.since, b.since), cmp.Compare(a.name, b.name))
}

// claims reads the claims of all Blueprints from the cache. It is safe for concurrent use.
type claims struct {
	cache    cache
	registry *registry

	mu sync.Mutex // guards known
	// known holds the claims by cached object, because decoding a thousand Blueprints would take up most of a validation.
	// The objects are immutable. known is cleared when most of its objects are no longer in the cache.
	known map[*unstructured.Unstructured]claim
}

// all returns the claims of all Blueprints.
func (c *claims) all() (all []claim, err error) {
	objects, err := c.cache.blueprints()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known == nil || len(c.known) > 2*len(objects) {
		c.known = make(map[*unstructured.Unstructured]claim, len(objects))
	}
	for _, object := range objects {
		u, ok := object.(*unstructured.Unstructured)
		if !ok {
			continue
		}
		known, has := c.known[u]
		if !has {
			known = claimOf(u)
			if b, err := blueprint.FromUnstructured(u); err == nil { // malformed Blueprints are never served
				known.memory = b.Spec.Memory()
			}
			c.known[u] = known
		}
		all = append(all, known)
	}
	return all, nil
}

// holder returns the name of another Blueprint that holds the claimed type, or an empty string. All replicas get the
// same result if their caches and their decisions on the other Blueprints agree.
func (c *claims) holder(own claim, crd *apiextensionsv1.CustomResourceDefinition, faulty bool) (string, error) {
	all, err := c.all()
	if err != nil {
		return "", err
	}
	same := slices.DeleteFunc(all, func(other claim) bool { return other.crd != own.crd })
	if len(same) < 2 {
		return "", nil
	}
	var stored map[types.UID]*revision
	if crd == nil {
		if stored, err = c.cache.newestRevisions(); err != nil {
			return "", err
		}
	}
	best, lowest := own, unqualified
	for _, other := range same {
		isFaulty := faulty
		if other.uid != own.uid {
			d, _ := c.registry.get(other.name)
			isFaulty = d.uid == other.uid && d.faulty
		}
		rank := other.rank(crd, stored[other.uid] != nil, isFaulty)
		if rank < lowest || rank == lowest && rank < unqualified && compareAge(other, best) < 0 {
			best, lowest = other, rank
		}
	}
	if lowest == unqualified || best.uid == own.uid {
		return "", nil
	}
	return best.name, nil
}
