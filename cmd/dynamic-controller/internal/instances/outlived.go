package instances

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
	"github.com/dynamic-controller/engine/handlers/children"
)

// An instance can be removed in spite of its finalizer. If the platform stops before gone has deleted the children,
// nothing but their marks shows that they are children. They are reported, but not deleted: anyone who can create an
// object can forge the mark of an instance that does not exist.

// outlivedAfter is the time for which an instance must not exist before its children are reported. Meanwhile, the
// caches receive the deletions that gone has requested.
const outlivedAfter = 5 * time.Second

// outlived records the instances that no longer exist but still have children, for one run of the controller. It is
// safe for concurrent use.
type outlived struct {
	mu        sync.Mutex      // guards the fields below
	run       <-chan struct{} // is closed when the run has ended
	instances map[string]outlivedInstance
}

type outlivedInstance struct {
	since    time.Time
	reported []string // the children that have been reported
}

// wait returns how long to wait before the children of an instance are reported.
func (o *outlived) wait(run <-chan struct{}, instance string, now time.Time) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.run != run || o.instances == nil {
		o.run, o.instances = run, map[string]outlivedInstance{}
	}
	known, isKnown := o.instances[instance]
	if !isKnown {
		known.since = now
		o.instances[instance] = known
	}
	return max(known.since.Add(outlivedAfter).Sub(now), 0)
}

// add adds children of an instance, and returns those that have not been reported in this run.
func (o *outlived) add(instance string, children []string) (unreported []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	known, isKnown := o.instances[instance]
	if !isKnown {
		return nil // it has been created in the meantime
	}
	for _, child := range children {
		if !slices.Contains(known.reported, child) {
			unreported = append(unreported, child)
		}
	}
	known.reported = append(known.reported, unreported...)
	o.instances[instance] = known
	return unreported
}

func (o *outlived) forget(instance string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.instances, instance)
}

// reported returns the children that have been reported in the current run, by instance.
func (o *outlived) reported() map[string][]string {
	o.mu.Lock()
	defer o.mu.Unlock()
	reported := map[string][]string{}
	select {
	case <-o.run:
	default:
		for instance, known := range o.instances {
			reported[instance] = slices.Clone(known.reported)
		}
	}
	return reported
}

// reportOutliving logs the children of an instance that no longer exists. The log is for operators: the names of the
// children are shown to nobody else. The instance and the children are read from the API server, because a cache can be
// behind their deletion for any time.
func (r *Reconcilers) reportOutliving(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
	o, found := r.newest.outlived, r.outliving(id.NamespacedKey)
	if len(found) == 0 {
		o.forget(id.NamespacedKey)
		return nil
	}
	if within := r.newest.namespaces; len(within) > 0 && !slices.Contains(within, id.Namespace()) {
		return nil // the platform does not read instances in this namespace
	}
	wait := o.wait(dynamiccontroller.RunContext(ctx).Done(), id.NamespacedKey, time.Now())
	if wait > 0 {
		return dynamiccontroller.RequeueAfter(wait)
	}
	live := handlers.Live(r.newest.client)
	switch _, err := live.Get(ctx, id.GVR, id.Namespace(), id.Name()); {
	case err == nil:
		o.forget(id.NamespacedKey)
		return nil // the cache lags behind: another event follows
	case !apierrors.IsNotFound(err):
		return err
	}
	names, err := existing(ctx, live, id.NamespacedKey, found)
	if err != nil {
		return err
	}
	if unreported := o.add(id.NamespacedKey, names); len(unreported) > 0 {
		logr.FromContextOrDiscard(ctx).Info("Found children of an instance that no longer exists",
			"objects", joinFirst(unreported, ", "))
	}
	return nil
}

// Outliving returns the number of children of instances that no longer exist. It is zero if no run is active.
func (r *Reconcilers) Outliving() (count int) {
	for instance, reported := range r.newest.outlived.reported() {
		for _, child := range r.outliving(instance) {
			if slices.Contains(reported, child.name()) {
				count++
			}
		}
	}
	return count
}

// outlivingChild is a child of an instance that does not exist.
type outlivingChild struct {
	kind   Child
	parent schema.GroupKind // the kind of the instance
	object metav1.Object
}

func (c outlivingChild) name() string {
	return c.kind.GVK.Kind + " " + cache.MetaObjectToName(c.object).String()
}

// outliving returns the cached children of an instance that does not exist, unless they are being deleted.
func (r *Reconcilers) outliving(instance string) (found []outlivingChild) {
	parent, err := r.mapper.KindFor(r.newest.GVR)
	if err != nil {
		return nil // the type is not served
	}
	r.mu.Lock()
	revisions := []*Reconciler{r.newest}
	for _, older := range r.older {
		revisions = append(revisions, older)
	}
	r.mu.Unlock()
	for _, revision := range revisions {
		for _, kind := range revision.Children {
			key := dynamiccontroller.Watches(kind.GVR, instanceOf, withParentLabel, revision.within).Key()
			lister, err := revision.engine.SecondaryLister(revision.GVR, key)
			if err != nil {
				continue // the kind has no such children
			}
			marked, _ := lister.ByIndex(instanceAnnotation, instance) // empty until the cache has synced
			for _, object := range marked {
				isKnown := slices.ContainsFunc(found, func(c outlivingChild) bool { return c.object.GetUID() == object.GetUID() })
				if !isKnown && isOutliving(object, instance, parent.GroupKind()) {
					found = append(found, outlivingChild{kind, parent.GroupKind(), object})
				}
			}
		}
	}
	return found
}

// existing returns the names of the children that still exist and still have their marks. It lists them by their label,
// because the platform can list the kind, but need not be allowed to get its objects.
func existing(
	ctx context.Context, live handlers.Reader, instance string, found []outlivingChild,
) (names []string, err error) {
	type place struct {
		gvr              schema.GroupVersionResource
		namespace, label string
	}
	lists := map[place][]string{} // the UIDs of the existing children
	for _, child := range found {
		at := place{child.kind.GVR, child.object.GetNamespace(), child.object.GetLabels()[parentLabel]}
		uids, isListed := lists[at]
		if !isListed {
			objects, err := live.List(ctx, at.gvr, at.namespace, labels.SelectorFromSet(labels.Set{parentLabel: at.label}))
			if err != nil {
				return nil, err
			}
			for _, object := range objects {
				if isOutliving(object, instance, child.parent) {
					uids = append(uids, string(object.GetUID()))
				}
			}
			lists[at] = uids
		}
		if slices.Contains(uids, string(child.object.GetUID())) {
			names = append(names, child.name())
		}
	}
	slices.Sort(names)
	return names, nil
}

// isOutliving reports whether an object has the mark of an instance that does not exist.
func isOutliving(object metav1.Object, instance string, kind schema.GroupKind) bool {
	name, err := cache.ParseObjectName(instance)
	parent := &metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}
	return err == nil && object.GetDeletionTimestamp() == nil &&
		children.MarkedUID(object, parent, kind, Name) != ""
}
