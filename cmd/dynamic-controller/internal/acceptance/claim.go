package acceptance

import (
	"cmp"
	"slices"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// claim is a Blueprint's claim to a type.
type claim struct {
	crd string // name of the CustomResourceDefinition
	// named reports whether the Blueprint names an existing CustomResourceDefinition in spec.type.crd. If it is false, the
	// platform creates the CustomResourceDefinition from spec.type.
	named    bool
	deleting bool  // the Blueprint is being deleted
	since    int64 // creation time of the Blueprint in Unix seconds
	name     string
	uid      types.UID
	memory   int64 // estimated memory of the spec
}

// claimRank is the rank of a claim to a type. The claim with the lowest rank wins. Among claims of the same rank, the
// oldest Blueprint's claim wins. Unqualified claims never win.
type claimRank int

const (
	// reserved means that the platform created the CustomResourceDefinition for this Blueprint or for an earlier Blueprint
	// with the same name.
	reserved claimRank = iota
	// allowed means that the platform did not create the CustomResourceDefinition, and that an annotation on the
	// CustomResourceDefinition allows this Blueprint.
	allowed
	// established means that the type does not exist, and that a spec of this Blueprint has been accepted before.
	established
	// candidate means that the type does not exist, and that this Blueprint would be accepted.
	candidate
	// unqualified means that this Blueprint must not serve the type, or that it has never been accepted and is rejected
	// for a reason other than its claim.
	unqualified
)

// rank returns the rank of the claim. crd is nil if the claimed CustomResourceDefinition does not exist. stored reports
// whether the Blueprint has a stored revision. faulty reports whether the Blueprint is rejected for a reason other than
// its claim.
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

func claimOf(b *blueprint.Blueprint) claim {
	return claim{
		crd: blueprint.DefinitionName(b), named: b.Spec.Type.CRD != "", deleting: b.DeletionTimestamp != nil,
		since: b.CreationTimestamp.Unix(), name: b.Name, uid: b.UID, memory: b.Spec.Memory(),
	}
}

// compareAge orders claims from oldest to newest. Claims from the same second are ordered by name, so that all replicas
// agree.
func compareAge(a, b claim) int {
	return cmp.Or(cmp.Compare(a.since, b.since), cmp.Compare(a.name, b.name))
}

// claims reads the claims of all Blueprints from the cache. It is safe for concurrent use.
type claims struct {
	cache    cache
	registry *registry
	decoded  *decodedClaims
	// candidate is the claim of a Blueprint that is being reviewed before it is stored, and nil otherwise. It replaces the
	// cached claim of the Blueprint with the same name.
	candidate *claim
}

// decodedClaims caches the claims of cached Blueprints.
type decodedClaims struct {
	mu sync.Mutex // guards known
	// known contains the claims by cached Blueprint. Cached Blueprints are immutable. Decoding a thousand of them for each
	// validation would take most of the time of the validation. known is cleared when most of its Blueprints are no longer
	// cached.
	known map[*unstructured.Unstructured]claim
}

// all returns the claims of all Blueprints.
func (c *claims) all() (all []claim, err error) {
	objects, err := c.cache.blueprints()
	if err != nil {
		return nil, err
	}
	all = c.decoded.claimsOf(objects)
	if c.candidate != nil {
		all = slices.DeleteFunc(all, func(other claim) bool { return other.name == c.candidate.name })
		all = append(all, *c.candidate)
	}
	return all, nil
}

func (c *decodedClaims) claimsOf(objects []runtime.Object) (all []claim) {
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
			b, err := blueprint.FromUnstructured(u)
			if err != nil {
				continue // malformed Blueprints are never served
			}
			known = claimOf(b)
			c.known[u] = known
		}
		all = append(all, known)
	}
	return all
}

// holder returns the name of the Blueprint whose claim to the type takes precedence over own. It returns "" if there is
// none. All replicas that have the same caches and have made the same decisions about the other Blueprints get the same
// result.
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
