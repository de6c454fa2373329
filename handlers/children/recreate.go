package children

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/handlers/internal/live"
	"github.com/dynamic-controller/engine/handlers/internal/ownerref"
	"github.com/dynamic-controller/engine/handlers/internal/patch"
	"github.com/dynamic-controller/engine/internal/datakinds"
)

// OnImmutable determines what happens to a child that cannot be changed into its desired state.
type OnImmutable string

// Values of OnImmutable. The empty value means OnImmutableFail.
const (
	OnImmutableFail     OnImmutable = "Fail"
	OnImmutableRecreate OnImmutable = "Recreate"
)

// recreationPeriod limits how often a child is recreated, and how often a dry run is sent for the same desired state.
const recreationPeriod = time.Minute

// errImmutable is wrapped, together with the response of the API server, by the error for a child that can be created
// in its desired state but not changed into it, and that is not recreated.
var errImmutable = errors.New("the object cannot be changed into its desired state")

// CanRecreate reports whether children of a kind can have [OnImmutableRecreate]. It returns false for kinds whose
// objects hold data: Namespaces, PersistentVolumes and their claims, CustomResourceDefinitions and volume snapshots.
func CanRecreate(kind schema.GroupKind) bool { return !datakinds.Contains(kind) }

// check returns an error if a child must not have the value.
func (o OnImmutable) check(desired Child) error {
	kind := desired.Object.GroupVersionKind().GroupKind()
	switch {
	case o == "", o == OnImmutableFail:
		return nil
	case o != OnImmutableRecreate:
		return fmt.Errorf("OnImmutable %q: must be %s or %s", o, OnImmutableFail, OnImmutableRecreate)
	case desired.Retain:
		return fmt.Errorf("OnImmutable must not be %s, because the child is retained", o)
	case !CanRecreate(kind):
		return fmt.Errorf("OnImmutable must not be %s, because deleting a %s deletes data", o, kind.Kind)
	}
	return nil
}

// recreation is stored for a child whose update was refused.
type recreation struct {
	hash   string // the desired state of the last dry run
	probed time.Time
	err    error // the result of the last dry run; nil if the child can be created

	deleted time.Time // when this run deleted the child
	pending bool      // whether the child has not been created since then
}

// recreate deletes a child whose update the API server has refused as invalid, and creates it again, if this is allowed
// and can help. Otherwise, it returns the child and an error that wraps refusal. The child is the object to which the
// update was sent: if it has changed since then, the error is a conflict, and the update must be tried again.
func (c *call) recreate(
	ctx context.Context, child *child, refused *unstructured.Unstructured, refusal error,
) (*unstructured.Unstructured, error) {
	if child.OnImmutable != OnImmutableRecreate {
		return refused, refusal
	}
	switch err := c.probe(ctx, child); {
	case err != nil && !isRejection(err):
		return refused, fmt.Errorf("dry run before recreating: %w; the change was refused: %w", err, refusal)
	case err != nil:
		return refused, fmt.Errorf("%w; it is not recreated, because a dry run of its creation fails: %w", refusal, err)
	}
	current, err := c.readOwners(ctx, child, refused)
	if err != nil {
		return nil, fmt.Errorf("read before recreating: %w", err)
	}
	obstacle, err := c.obstacle(ctx, child, current)
	if err == nil && obstacle == "" {
		_, err = c.readParent(ctx) // it can have been deleted or orphaned since the call began
	}
	if err == nil && obstacle == "" {
		err = c.checkCreate(child)
	}
	switch {
	case err != nil:
		return nil, err
	case obstacle != "":
		return refused, fmt.Errorf("%w: %w; it is not recreated, because %s", errImmutable, refusal, obstacle)
	}
	if err := c.deleteForRecreation(ctx, child, current); apierrors.IsConflict(err) {
		return nil, err
	} else if err != nil {
		return refused, fmt.Errorf("%w: %w; it cannot be deleted: %w", errImmutable, refusal, err)
	}
	logr.FromContextOrDiscard(ctx).Info("Deleted a child to create it again, because it cannot be changed",
		"child", child.id.String(), "uid", current.GetUID())
	now, err := c.readLive(ctx, child)
	if err != nil {
		return nil, fmt.Errorf("read after deleting: %w", err)
	}
	return c.applyTo(ctx, child, now)
}

// probe returns an error if the API server would not create the child, using a dry run. The API server checks the
// content of an object and calls admission before it checks whether the name is taken. The expected response is
// therefore that the object already exists. The result is kept for a while, because a dry run calls admission webhooks.
func (c *call) probe(ctx context.Context, child *child) error {
	known := &child.entry.recreation
	if known.hash == child.hash && time.Since(known.probed) < recreationPeriod {
		return known.err
	}
	config := child.config.DeepCopy()
	config.SetGenerateName("") // would be used by a webhook that removes the name
	_, err := live.Resource(c.as.Client, child.id.GVR, child.id.Namespace()).Create(ctx, config, metav1.CreateOptions{
		DryRun: []string{metav1.DryRunAll}, FieldManager: c.config.Name, FieldValidation: metav1.FieldValidationStrict,
	})
	if apierrors.IsAlreadyExists(err) {
		err = nil // without an error, the object is gone, which readOwners detects
	}
	if err == nil || isRejection(err) {
		known.hash, known.probed, known.err = child.hash, time.Now(), err
	}
	return err
}

// isRejection reports whether the API server rejected a request because of its content or its sender.
func isRejection(err error) bool {
	return isRefusal(err) || apierrors.IsForbidden(err) || apierrors.IsMethodNotSupported(err)
}

// obstacle returns why a child must not be recreated, or "".
func (c *call) obstacle(ctx context.Context, child *child, current *unstructured.Unstructured) (string, error) {
	isChild, err := c.isChild(ctx, current)
	if err != nil {
		return "", err
	}
	annotations := current.GetAnnotations()
	deleted, _, _ := unstructured.NestedString(current.Object,
		"spec", "persistentVolumeClaimRetentionPolicy", "whenDeleted")
	isStatefulSet := child.kind == schema.GroupKind{Group: "apps", Kind: "StatefulSet"}
	switch finalizers := current.GetFinalizers(); {
	case !isChild:
		return "its owner reference or its labels have been changed", nil
	case annotations[c.adoptedKey()] != "":
		return "it was adopted", nil
	case len(finalizers) > 0:
		return "it has finalizers: " + firstOf(finalizers), nil
	case isStatefulSet && deleted == "Delete":
		return "its persistentVolumeClaimRetentionPolicy deletes volumes", nil
	case annotations[c.recreatedKey()] == child.hash:
		return "it was already recreated for this desired state", nil
	case annotations[c.recreatedKey()] != "" && time.Since(current.GetCreationTimestamp().Time) < recreationPeriod,
		time.Since(child.entry.recreation.deleted) < recreationPeriod:
		return fmt.Sprintf("it was already recreated in the last %s", recreationPeriod), nil
	}
	return "", nil
}

// deleteForRecreation deletes exactly the given version of a child.
func (c *call) deleteForRecreation(ctx context.Context, child *child, current *unstructured.Unstructured) error {
	objects := live.Resource(c.as.Client, child.id.GVR, child.id.Namespace())
	err := objects.Delete(ctx, child.id.Name(), metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{
			UID: ptr.To(current.GetUID()), ResourceVersion: ptr.To(current.GetResourceVersion()),
		},
		PropagationPolicy: ptr.To(metav1.DeletePropagationBackground),
	})
	if err != nil && !patch.IsGone(err) {
		return err
	}
	c.own.recordDeleted(child.id, current)
	child.entry.reset()
	child.entry.fights.exists = false
	child.entry.recreation.deleted, child.entry.recreation.pending = time.Now(), true
	return nil
}

// noteRecreation adds an annotation to the metadata with which a child is created, if this run has deleted the child to
// recreate it. The annotation limits recreations across changes of the leader.
func (c *call) noteRecreation(child *child, metadata map[string]any) map[string]any {
	if child.entry.recreation.pending {
		metadata["annotations"] = annotationsOf(child, map[string]string{c.recreatedKey(): child.hash})
	}
	return metadata
}

// keepNotes adds the annotations that are not part of the desired child to the metadata with which an existing object
// is applied: whether the object was adopted, and for which desired state it was recreated. An apply without them would
// remove them.
func (c *call) keepNotes(
	ctx context.Context, child *child, current *unstructured.Unstructured, metadata map[string]any,
) error {
	notes := map[string]string{}
	for _, key := range []string{c.adoptedKey(), c.recreatedKey()} {
		if value := current.GetAnnotations()[key]; value != "" {
			notes[key] = value
		}
	}
	adopts, err := c.adopts(ctx, child, current)
	if adopts {
		notes[c.adoptedKey()] = "true"
	}
	if len(notes) > 0 {
		metadata["annotations"] = annotationsOf(child, notes)
	}
	return err
}

// adopts reports whether an apply takes over an object that was not created for the parent. The annotation
// <name>/applied alone does not show this, because a copy of a child has the same annotations.
func (c *call) adopts(ctx context.Context, child *child, current *unstructured.Unstructured) (bool, error) {
	controller := metav1.GetControllerOfNoCopy(current)
	isOwner := controller != nil && controller.UID == c.parent.GetUID()
	if ownerref.CanReach(c.parent, current.GetNamespace()) && (isOwner || c.hasLabel(current)) {
		return current.GetAnnotations()[c.appliedKey()] == "", nil
	}
	if controller == nil && c.wasChild(current) && c.checkConfirmed(child, current) == nil {
		return false, nil // it was created for the parent before the restore
	}
	mark, err := c.markOf(ctx, current)
	return mark == noMark, err
}

// annotationsOf returns the annotations of a desired child together with others.
func annotationsOf(child *child, others map[string]string) map[string]any {
	all := map[string]any{}
	for key, value := range child.config.GetAnnotations() {
		all[key] = value
	}
	for key, value := range maps.All(others) {
		all[key] = value
	}
	return all
}
