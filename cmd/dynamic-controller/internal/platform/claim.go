package platform

import (
	"slices"
	"strings"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// claim is what a Blueprint claims, by the name of a CustomResourceDefinition, and since when.
type claim struct {
	crd string
	// named reports whether the Blueprint names the CustomResourceDefinition with spec.type.crd. Otherwise the platform
	// creates it from spec.type.
	named  bool
	ending bool // the Blueprint is being deleted
	since  int64
	name   string
	uid    types.UID
	memory int64 // estimated, to serve it
}

// standing ranks the claims to one type. The claim with the best standing holds the type, unless it is unqualified.
type standing int

const (
	// maker: the platform created the CustomResourceDefinition for this Blueprint.
	maker standing = iota
	// reserved: the platform created it for an earlier Blueprint of the name.
	reserved
	// allowed: somebody else created it, and it allows this Blueprint.
	allowed
	// established: it does not exist, and a spec of this Blueprint has been accepted before.
	established
	// candidate: it does not exist, and this Blueprint would be accepted.
	candidate
	// unqualified: this Blueprint has no right to the type, or is refused for other reasons and has never been accepted.
	unqualified
)

// standingOf returns the standing of a claim to the definition, which is nil if it does not exist. Stored reports
// whether an accepted spec of the Blueprint is stored, and faulty whether the Blueprint is refused for reasons other
// than a claim.
func (c claim) standingOf(crd *apiextensionsv1.CustomResourceDefinition, stored, faulty bool) standing {
	switch {
	case crd != nil && crd.Annotations[madeByKey] == string(c.uid):
		return maker
	case crd != nil && crd.Annotations[madeForKey] == c.name:
		return reserved
	case crd != nil && c.named && allows(crd, c.name):
		return allowed
	case crd != nil:
		return unqualified
	case stored:
		return established
	case !c.named && !c.ending && !faulty:
		return candidate
	}
	return unqualified
}

// allows reports whether a definition that the platform did not create has the annotation that allows the Blueprint.
func allows(crd *apiextensionsv1.CustomResourceDefinition, blueprintName string) bool {
	return !isMade(crd) && crd.Annotations[allowedKey] == blueprintName
}

// claimOf reads a claim without reading the whole Blueprint: there may be many.
func claimOf(object *unstructured.Unstructured) claim {
	field := func(name string) string {
		s, _, _ := unstructured.NestedString(object.Object, "spec", "type", name)
		return s
	}
	return claim{
		named:  field("crd") != "",
		ending: object.GetDeletionTimestamp() != nil,
		crd: blueprint.DefinitionName(&blueprint.Blueprint{Spec: blueprint.Spec{Type: blueprint.Type{
			CRD: field("crd"), Group: field("group"), Kind: field("kind"), Plural: field("plural"),
		}}}),
		since: object.GetCreationTimestamp().Unix(),
		name:  object.GetName(),
		uid:   object.GetUID(),
	}
}

// isOlder reports whether the claim is older than the other. All replicas order two claims of the same second in the
// same way.
func (c claim) isOlder(other claim) bool {
	if c.since != other.since {
		return c.since < other.since
	}
	return strings.Compare(c.name, other.name) < 0
}

// claims remembers what the Blueprints in the cache claim: a decision looks at all of them, and to read a thousand took most
// of its time. It may be used concurrently.
type claims struct {
	mu sync.Mutex // guards known
	// known is by the objects as the cache has them, which are never changed. It begins anew when it has as many more that
	// the cache has no longer.
	known map[*unstructured.Unstructured]claim
}

// of lists those of the Blueprints' claims that are for this CustomResourceDefinition.
func (c *claims) of(crd string, blueprints []runtime.Object) []claim {
	return slices.DeleteFunc(c.all(blueprints), func(claimed claim) bool { return claimed.crd != crd })
}

// all lists the claims of all Blueprints.
func (c *claims) all(blueprints []runtime.Object) (all []claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known == nil || len(c.known) > 2*len(blueprints) {
		c.known = make(map[*unstructured.Unstructured]claim, len(blueprints))
	}
	for _, object := range blueprints {
		u, ok := object.(*unstructured.Unstructured)
		if !ok {
			continue
		}
		claimed, has := c.known[u]
		if !has {
			claimed = claimOf(u)
			claimed.memory = memoryOf(u)
			c.known[u] = claimed
		}
		all = append(all, claimed)
	}
	return all
}

// holder returns the name of another Blueprint that holds the claimed type, or an empty string. All replicas get the
// same result as far as their caches and their decisions on the other Blueprints agree.
func (p *Platform) holder(own claim, crd *apiextensionsv1.CustomResourceDefinition, faulty bool) (string, error) {
	lister, err := p.engines.Definitions.Lister(blueprints)
	if err != nil {
		return "", err
	}
	all, err := lister.List(labels.Everything())
	if err != nil {
		return "", err
	}
	same := p.claims.of(own.crd, all)
	if len(same) < 2 {
		return "", nil
	}
	stored := map[types.UID]bool{}
	if crd == nil {
		if stored, err = p.storedUIDs(); err != nil {
			return "", err
		}
	}
	best, holds := own, unqualified
	for _, c := range same {
		isFaulty := faulty
		if c.uid != own.uid {
			d, _ := p.registry.get(c.name)
			isFaulty = d.uid == c.uid && d.faulty
		}
		if s := c.standingOf(crd, stored[c.uid], isFaulty); s < holds || s == holds && s < unqualified && c.isOlder(best) {
			best, holds = c, s
		}
	}
	if holds == unqualified || best.uid == own.uid {
		return "", nil
	}
	return best.name, nil
}
