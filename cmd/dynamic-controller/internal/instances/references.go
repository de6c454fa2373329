package instances

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/identity"
)

// lookups reads the objects that an instance refers to during one reconcile. It reads them from the API server with the
// identity of the instance, once per reference, so all steps of the reconcile use the same objects.
type lookups struct {
	client *childClient
	kinds  []Child // the kinds of the objects
	index  *referrers
	self   *unstructured.Unstructured // the instance

	isWatched func(schema.GroupVersionResource) bool
	unwatched bool // whether an object or a child was read before its watch had synced

	answers map[target]answer
	err     error // errors from failed lookups
}

// unwatchedInterval is the delay before the next reconcile of an instance that read objects before their watch had
// synced. A watch does not report objects that were deleted before it synced.
const unwatchedInterval = 30 * time.Second

type answer struct {
	objects []*unstructured.Unstructured
	err     error
}

func (r *Reconciler) newLookups(client *childClient, self *unstructured.Unstructured) *lookups {
	reads := *client
	reads.budget = &identity.ResponseBudget{Bytes: blueprint.MaxReferenceBytes}
	return &lookups{
		client: &reads, kinds: r.References, index: r.referrers, self: self,
		isWatched: r.isWatched, answers: map[target]answer{},
	}
}

// isWatched reports whether the watch for existing objects of a type has synced.
func (r *Reconciler) isWatched(gvr schema.GroupVersionResource) bool {
	lister, err := r.engine.SecondaryLister(r.GVR, watchOf(gvr, nil, r.within).Key())
	if err == nil {
		_, err = lister.Get("any") // usually a NotFound error
	}
	return !isUncached(err)
}

// lookUp implements [blueprint.Lookup].
func (l *lookups) lookUp(ctx context.Context, reference blueprint.Reference) ([]*unstructured.Unstructured, error) {
	i := slices.IndexFunc(l.kinds, func(kind Child) bool { return kind.GVK == reference.GVK })
	if i < 0 {
		return nil, fmt.Errorf("the kind %s is not watched", reference.GVK)
	}
	t := targetOf(l.kinds[i].GVR, reference)
	if known, has := l.answers[t]; has {
		return known.objects, known.err
	}
	// The target is added before the read, so no later change is missed.
	l.unwatched = l.unwatched || !l.isWatched(t.gvr)
	l.index.add(keyOf(l.self), t, reference.Selector)
	var a answer
	if a.objects, a.err = l.read(ctx, t, reference); a.err != nil && !isAnswer(a.err) {
		l.err = errors.Join(l.err, fmt.Errorf("%s: %w", reference.ID, a.err))
	}
	l.answers[t] = a
	return a.objects, a.err
}

// isAnswer reports whether the error from a lookup is a statement about the objects (missing or unusable) rather than a
// failure to read them.
func isAnswer(err error) bool {
	var unusable *blueprint.UnusableError
	return apierrors.IsNotFound(err) || errors.As(err, &unusable)
}

// read reads the objects from the API server.
func (l *lookups) read(
	ctx context.Context, t target, reference blueprint.Reference,
) (objects []*unstructured.Unstructured, err error) {
	client := l.client.Resource(t.gvr).Namespace(t.namespace)
	if reference.Selector == nil {
		var object *unstructured.Unstructured
		object, err = client.Get(ctx, t.name, metav1.GetOptions{})
		objects = []*unstructured.Unstructured{object}
	} else {
		notOwn := childExclusion(l.self) // exclude children of the instance from the limits
		objects, err = list(ctx, client.List, strings.TrimPrefix(t.selector+","+notOwn, ","))
	}
	switch {
	case errors.Is(err, identity.ErrResponseTooLarge):
		return nil, &blueprint.UnusableError{Reason: fmt.Sprintf(
			"the objects that the instance refers to have more than %d bytes; refer to fewer or smaller objects",
			blueprint.MaxReferenceBytes)}
	case err != nil:
		return nil, err
	}
	isChild := func(object *unstructured.Unstructured) bool { return hasLabel(object, l.self) }
	if reference.Selector == nil && isChild(objects[0]) {
		return nil, &blueprint.UnusableError{Reason: reference.String() +
			" is a child of the instance; refer to a child by the id of its resource"}
	}
	// If a template depended on its own child, the child could change endlessly.
	return slices.DeleteFunc(objects, isChild), nil
}

// list returns the objects that match a selector, sorted by namespace and name.
func list(
	ctx context.Context, request func(context.Context, metav1.ListOptions) (*unstructured.UnstructuredList, error),
	selector string,
) ([]*unstructured.Unstructured, error) {
	found, err := request(ctx, metav1.ListOptions{LabelSelector: selector, Limit: blueprint.MaxReferenced + 1})
	if err != nil {
		return nil, err
	}
	if len(found.Items) > blueprint.MaxReferenced || found.GetContinue() != "" {
		return nil, &blueprint.UnusableError{Reason: fmt.Sprintf(
			"more than %d objects match the selector; use a narrower one", blueprint.MaxReferenced)}
	}
	objects := make([]*unstructured.Unstructured, len(found.Items))
	for i := range found.Items {
		objects[i] = &found.Items[i]
	}
	slices.SortFunc(objects, func(a, b *unstructured.Unstructured) int {
		return cmp.Or(strings.Compare(a.GetNamespace(), b.GetNamespace()), strings.Compare(a.GetName(), b.GetName()))
	})
	return objects, nil
}

// settle completes the lookups of a reconcile that returned err. From then on, changes to objects that this reconcile
// did not look up do not trigger a reconcile of the instance. settle returns the combination of err and the errors from
// failed lookups. See outcome.
func (l *lookups) settle(err error) error {
	l.index.keep(keyOf(l.self), sets.KeySet(l.answers))
	return outcome(err, l.err)
}

// List lists objects with the permissions of the identity.
func (o childObjects) List(
	ctx context.Context, opts metav1.ListOptions,
) (list *unstructured.UnstructuredList, err error) {
	err = o.request(o.client.limited(ctx), "list", nil, func(ctx context.Context) (err error) {
		list, err = o.ResourceInterface.List(ctx, opts)
		return err
	})
	return list, err
}

// targetOf returns the target that a reference describes.
func targetOf(gvr schema.GroupVersionResource, reference blueprint.Reference) target {
	t := target{gvr: gvr, namespace: reference.Namespace, name: reference.Name}
	if reference.Selector != nil {
		t.selector = reference.Selector.String()
	}
	return t
}
