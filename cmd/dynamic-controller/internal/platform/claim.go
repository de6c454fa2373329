package platform

import (
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// claim is what a Blueprint claims, by the name of a CustomResourceDefinition, and since when.
type claim struct {
	crd   string
	since int64
	name  string
	uid   types.UID
}

// claimOf reads a claim without reading the whole Blueprint: there may be many.
func claimOf(object *unstructured.Unstructured) claim {
	field := func(name string) string {
		s, _, _ := unstructured.NestedString(object.Object, "spec", "type", name)
		return s
	}
	return claim{
		crd: blueprint.DefinitionName(&blueprint.Blueprint{Spec: blueprint.Spec{Type: blueprint.Type{
			CRD: field("crd"), Group: field("group"), Kind: field("kind"), Plural: field("plural"),
		}}}),
		since: object.GetCreationTimestamp().Unix(),
		name:  object.GetName(),
		uid:   object.GetUID(),
	}
}

// goesBefore tells whether the claim goes before the other: that of the Blueprint for which the type was made, then the
// older, and of two of one second one of them, the same on every replica.
func (c claim) goesBefore(other claim, maker types.UID) bool {
	if c.uid != other.uid && maker != "" && (c.uid == maker || other.uid == maker) {
		return c.uid == maker
	}
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
func (c *claims) of(crd string, blueprints []runtime.Object) (same []claim) {
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
			c.known[u] = claimed
		}
		if claimed.crd == crd {
			same = append(same, claimed)
		}
	}
	return same
}

// holder returns the name of another Blueprint that has what this one claims, empty if there is none. Maker is for whom the
// type was made, if anybody.
func (p *Platform) holder(own claim, maker types.UID) (string, error) {
	lister, err := p.engines.Definitions.Lister(blueprints)
	if err != nil {
		return "", err
	}
	all, err := lister.List(labels.Everything())
	if err != nil {
		return "", err
	}
	first := own
	for _, other := range p.claims.of(own.crd, all) {
		if other.goesBefore(first, maker) {
			first = other
		}
	}
	if first == own {
		return "", nil
	}
	return first.name, nil
}
