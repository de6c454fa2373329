package instances

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// outlived holds the instances that no longer exist but have children. It is safe for concurrent use.
type outlived struct {
	mu        sync.Mutex // guards instances
	instances map[string]outlivedInstance
}

type outlivedInstance struct {
	since    time.Time
	reported bool
}

// add adds an instance. It reports whether the children must be reported, or else how long to wait for it. The children
// of an instance are reported once.
func (o *outlived) add(instance string, now time.Time) (report bool, wait time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	known, isKnown := o.instances[instance]
	if !isKnown {
		known.since = now
	}
	wait = known.since.Add(outlivedAfter).Sub(now)
	report = wait <= 0 && !known.reported
	known.reported = known.reported || report
	if o.instances == nil {
		o.instances = map[string]outlivedInstance{}
	}
	o.instances[instance] = known
	return report, max(wait, 0)
}

func (o *outlived) forget(instance string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.instances, instance)
}

// reported returns the instances whose children have been reported.
func (o *outlived) reported() (instances []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for instance, known := range o.instances {
		if known.reported {
			instances = append(instances, instance)
		}
	}
	return instances
}

// reportOutliving logs the children of an instance that no longer exists. The log is for operators: the names of the
// children are shown to nobody else.
func (r *Reconcilers) reportOutliving(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
	o, found := r.newest.outlived, r.outliving(id.NamespacedKey)
	if len(found) == 0 {
		o.forget(id.NamespacedKey)
		return nil
	}
	if within := r.newest.namespaces; len(within) > 0 && !slices.Contains(within, id.Namespace()) {
		return nil // the platform does not read instances in this namespace
	}
	switch _, err := handlers.Live(r.newest.client).Get(ctx, id.GVR, id.Namespace(), id.Name()); {
	case err == nil:
		o.forget(id.NamespacedKey)
		return nil // the cache lags behind: another event follows
	case !apierrors.IsNotFound(err):
		return err
	}
	report, wait := o.add(id.NamespacedKey, time.Now())
	if report {
		logr.FromContextOrDiscard(ctx).Info("Found children of an instance that no longer exists",
			"objects", joinFirst(found, ", "))
	}
	if wait > 0 {
		return dynamiccontroller.RequeueAfter(wait)
	}
	return nil
}

// Outliving returns the number of children of instances that no longer exist.
func (r *Reconcilers) Outliving() (count int) {
	for _, instance := range r.newest.outlived.reported() {
		count += len(r.outliving(instance))
	}
	return count
}

// outliving returns the cached children of an instance that does not exist, unless they are being deleted.
func (r *Reconcilers) outliving(instance string) (found []string) {
	r.mu.Lock()
	revisions := []*Reconciler{r.newest}
	for _, older := range r.older {
		revisions = append(revisions, older)
	}
	r.mu.Unlock()
	for _, revision := range revisions {
		for _, child := range revision.Children {
			key := dynamiccontroller.Watches(child.GVR, instanceOf, withParentLabel, revision.within).Key()
			lister, err := revision.engine.SecondaryLister(revision.GVR, key)
			if err != nil {
				continue // the kind has no such children
			}
			marked, _ := lister.ByIndex(instanceAnnotation, instance) // until the cache has synced, there are none
			for _, object := range marked {
				name := child.GVK.Kind + " " + cache.MetaObjectToName(object).String()
				if isOutliving(object, instance, r.kind) && !slices.Contains(found, name) {
					found = append(found, name)
				}
			}
		}
	}
	slices.Sort(found)
	return found
}

// isOutliving reports whether an object has the mark of an instance that does not exist.
func isOutliving(object metav1.Object, instance string, kind schema.GroupKind) bool {
	name, err := cache.ParseObjectName(instance)
	parent := &metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}
	return err == nil && object.GetDeletionTimestamp() == nil &&
		children.MarkedUID(object, parent, kind, Name) != ""
}
