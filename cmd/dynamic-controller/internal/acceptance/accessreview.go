package acceptance

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilcache "k8s.io/apimachinery/pkg/util/cache"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
)

// Verbs that the platform needs on instances, children and referenced objects. If a Blueprint runs as a ServiceAccount,
// the platform needs only watchVerbs on the children and the referenced objects.
var (
	instanceVerbs  = []string{"get", "list", "watch", "patch"}
	childVerbs     = []string{"get", "list", "watch", "create", "patch", "delete"}
	referenceVerbs = []string{"get", "list", "watch"}
	watchVerbs     = []string{"list", "watch"}
	// witnessVerbs are for the ConfigMap that shows how an instance is deleted. See package handlers/children.
	witnessVerbs = []string{"get", "create", "patch", "delete"}
)

const (
	// grantedFor is how long a granted permission is cached, and maxGranted is the size of the cache. Denials are not
	// cached, so that new grants take effect soon.
	grantedFor = 5 * time.Minute
	maxGranted = 4096
	// If a permission is missing, the Blueprint is reconciled again after minReviewDelay. The delay doubles each time the
	// permission is still missing, up to maxReviewDelay.
	minReviewDelay = time.Second
	maxReviewDelay = 30 * time.Second
	// parallelReviews is the maximum number of concurrent access reviews for one Blueprint.
	parallelReviews = 8
)

// permission allows a verb on all objects of a resource.
type permission struct {
	verb        string
	resource    schema.GroupResource
	subresource string
	namespace   string // empty for all namespaces
	path        string // path of the Blueprint field that needs the permission
}

// key returns the permission without its path, so that it can be compared and used as a map key.
func (p permission) key() permission {
	p.path = ""
	return p
}

// scope returns the resource and the namespace, for messages.
func (p permission) scope() string {
	if p.namespace == "" {
		return p.name()
	}
	return p.name() + " in namespace " + p.namespace
}

// name returns the resource in a form such as "deployments/status.apps".
func (p permission) name() string {
	resource := p.resource.Resource
	if p.subresource != "" {
		resource += "/" + p.subresource
	}
	return (&schema.GroupResource{Group: p.resource.Group, Resource: resource}).String()
}

// permissionsFor returns the permissions that the platform needs to serve a Blueprint in the given namespaces, without
// duplicates. If namespaces is empty, the permissions apply to all namespaces. The name of the Blueprint's
// ServiceAccount must already be resolved.
func permissionsFor(
	b *blueprint.Blueprint, gvr schema.GroupVersionResource, children, references []instances.Child, namespaces []string,
) (all []permission) {
	add := func(path string, resource schema.GroupResource, subresource string, verbs ...string) {
		for _, namespace := range scopes(namespaces) {
			for _, verb := range verbs {
				p := permission{verb: verb, resource: resource, subresource: subresource, namespace: namespace, path: path}
				if !slices.ContainsFunc(all, func(o permission) bool { return o.key() == p.key() }) {
					all = append(all, p)
				}
			}
		}
	}
	if !gvr.Empty() {
		add("spec.type", gvr.GroupResource(), "", instanceVerbs...)
		add("spec.type", gvr.GroupResource(), "status", "patch")
		if b.Spec.DeletionPolicy == blueprint.Delete {
			add("spec.deletionPolicy", gvr.GroupResource(), "", "delete")
		}
	}
	onChildren, onReferences := childVerbs, referenceVerbs
	if b.Spec.ServiceAccountName != "" {
		onChildren, onReferences = watchVerbs, watchVerbs
	}
	for _, child := range children {
		add(child.Path, child.GVR.GroupResource(), "", onChildren...)
		if child.CrossNamespace && b.Spec.ServiceAccountName == "" {
			add(child.Path, schema.GroupResource{Resource: "configmaps"}, "", witnessVerbs...)
		}
	}
	for _, reference := range references {
		add(reference.Path, reference.GVR.GroupResource(), "", onReferences...)
	}
	return all
}

// Reviewer is the subset of SelfSubjectAccessReviewInterface that the platform uses.
type Reviewer interface {
	Create(ctx context.Context, review *authorizationv1.SelfSubjectAccessReview, opts metav1.CreateOptions) (
		*authorizationv1.SelfSubjectAccessReview, error)
}

// accessReviews checks the permissions of the platform with SelfSubjectAccessReviews. It is safe for concurrent use.
type accessReviews struct {
	reviews Reviewer
	granted *utilcache.LRUExpireCache
}

func newAccessReviews(reviews Reviewer) *accessReviews {
	return &accessReviews{reviews: reviews, granted: utilcache.NewLRUExpireCache(maxGranted)}
}

// missing returns the wanted permissions that the platform does not have, in the order of wanted.
func (a *accessReviews) missing(ctx context.Context, wanted []permission) (missing []permission, err error) {
	denied := make([]bool, len(wanted))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallelReviews)
	for i, p := range wanted {
		if _, known := a.granted.Get(p.key()); known {
			continue
		}
		group.Go(func() error {
			granted, err := a.review(ctx, p)
			if granted {
				a.granted.Add(p.key(), nil, grantedFor)
			}
			denied[i] = !granted
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	for i, p := range wanted {
		if denied[i] {
			missing = append(missing, p)
		}
	}
	return missing, nil
}

func (a *accessReviews) review(ctx context.Context, p permission) (granted bool, err error) {
	answer, err := a.reviews.Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: p.verb, Group: p.resource.Group, Resource: p.resource.Resource, Subresource: p.subresource,
			Namespace: p.namespace,
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("review the platform's permission to %s %s: %w", p.verb, p.scope(), err)
	}
	return answer.Status.Allowed, nil
}

// rejectMissing returns a rejection that lists the missing permissions, grouped by path, resource and namespace.
func rejectMissing(missing []permission) *rejection {
	grant := "\ngrant the missing permissions with a ClusterRole that has the label " + AggregationLabel + `: "true"`
	if len(missing) > 0 && missing[0].namespace != "" {
		grant = "\ngrant the missing permissions with a Role and a RoleBinding in the namespace"
	}
	var lines []string
	for len(missing) > 0 {
		first := missing[0]
		same := func(p permission) bool { return p.path == first.path && p.scope() == first.scope() }
		var verbs []string
		for _, p := range missing {
			if same(p) {
				verbs = append(verbs, p.verb)
			}
		}
		missing = slices.DeleteFunc(slices.Clone(missing), same)
		lines = append(lines, fmt.Sprintf("%s: the platform has no permission to %s %s",
			first.path, strings.Join(verbs, ", "), first.scope()))
	}
	return &rejection{reasonPermission, strings.Join(lines, "\n") + grant}
}

// reviewDelay returns the delay before a Blueprint with a missing permission is reconciled again. attempts is the
// number of earlier reconciles in which a permission was missing.
func reviewDelay(attempts int) time.Duration {
	return min(minReviewDelay<<min(attempts, 10), maxReviewDelay)
}
