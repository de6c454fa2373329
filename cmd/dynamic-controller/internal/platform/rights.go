package platform

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// What the platform does with the objects of each type.
var (
	instanceVerbs = []string{"get", "list", "watch", "patch"}
	childVerbs    = []string{"get", "list", "watch", "create", "patch", "delete"}
)

const (
	// rightsKept is how long an answer counts that something may be done. One that it may not is not kept: whoever gives
	// the right does not want to wait.
	rightsKept = 5 * time.Minute
	// A missing right is asked for again after firstAsked, and then each time after twice as long.
	firstAsked = time.Second
	lastAsked  = 30 * time.Second
	// asking is how many answers are waited for at once.
	asking = 8
)

// right is to do something with all objects of a type, in any namespace.
type right struct {
	verb     string
	resource schema.GroupResource
	sub      string // resource
	path     string // of the Blueprint that takes it
}

// question is a right whoever takes it.
func (r right) question() right { return right{verb: r.verb, resource: r.resource, sub: r.sub} }

// name is what it is called in a role.
func (r right) name() string {
	resource := r.resource.Resource
	if r.sub != "" {
		resource += "/" + r.sub
	}
	return (&schema.GroupResource{Group: r.resource.Group, Resource: resource}).String()
}

// rightsOf lists what it takes to serve a Blueprint, each right once.
func rightsOf(b *blueprint.Blueprint, gvr schema.GroupVersionResource, children []childKind) (all []right) {
	add := func(path string, resource schema.GroupResource, sub string, verbs ...string) {
		for _, verb := range verbs {
			r := right{verb: verb, resource: resource, sub: sub, path: path}
			if !slices.ContainsFunc(all, func(o right) bool { return o.question() == r.question() }) {
				all = append(all, r)
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
	for _, child := range children {
		add(child.path, child.gvr.GroupResource(), "", childVerbs...)
	}
	return all
}

// reviewer asks the API server what the platform may do. It is a SelfSubjectAccessReviewInterface.
type reviewer interface {
	Create(ctx context.Context, review *authorizationv1.SelfSubjectAccessReview, opts metav1.CreateOptions) (*authorizationv1.SelfSubjectAccessReview, error)
}

// rights knows what the platform may do. It may be used concurrently.
type rights struct {
	reviews reviewer

	mu   sync.Mutex // guards what follows
	have map[right]time.Time
}

func newRights(reviews reviewer) *rights {
	return &rights{reviews: reviews, have: map[right]time.Time{}}
}

// missing returns those that the platform has not, in the order in which they were given.
func (r *rights) missing(ctx context.Context, wanted []right) ([]right, error) {
	var unknown []right
	r.mu.Lock()
	for _, w := range wanted {
		if since, known := r.have[w.question()]; !known || time.Since(since) > rightsKept {
			unknown = append(unknown, w)
		}
	}
	r.mu.Unlock()

	errs, denied := make([]error, len(unknown)), make([]bool, len(unknown))
	var wait sync.WaitGroup
	slots := make(chan struct{}, asking)
	for i, w := range unknown {
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			var allowed bool
			allowed, errs[i] = r.ask(ctx, w)
			denied[i] = errs[i] == nil && !allowed
		})
	}
	wait.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	var missing []right
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, w := range unknown {
		if denied[i] {
			missing = append(missing, w)
			delete(r.have, w.question())
			continue
		}
		r.have[w.question()] = time.Now()
	}
	return missing, nil
}

func (r *rights) ask(ctx context.Context, w right) (bool, error) {
	answer, err := r.reviews.Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: w.verb, Group: w.resource.Group, Resource: w.resource.Resource, Subresource: w.sub,
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("ask whether the platform may %s %s: %w", w.verb, w.name(), err)
	}
	return answer.Status.Allowed, nil
}

// refuseMissing explains what is missing, by the paths that take it.
func refuseMissing(missing []right) *refusal {
	if len(missing) == 0 {
		return nil
	}
	var lines []string
	for len(missing) > 0 {
		first := missing[0]
		same := func(r right) bool { return r.path == first.path && r.name() == first.name() }
		var verbs []string
		for _, r := range missing {
			if same(r) {
				verbs = append(verbs, r.verb)
			}
		}
		missing = slices.DeleteFunc(slices.Clone(missing), same)
		lines = append(lines, fmt.Sprintf("%s: the platform may not %s %s", first.path, strings.Join(verbs, ", "), first.name()))
	}
	return &refusal{reasonRight, strings.Join(lines, "\n") +
		"\ngrant it with a ClusterRole that has the label " + AggregationLabel + `: "true"`}
}

// askAgain is how long to wait until a missing right is asked for again, after so many times.
func askAgain(times int) time.Duration {
	return cmp.Or(min(firstAsked<<min(times, 10), lastAsked), firstAsked)
}
