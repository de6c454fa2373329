package acceptance

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/children"
)

// defaultHistoryLimit is the number of old revisions to keep if the Blueprint does not set a limit.
const defaultHistoryLimit = 10

// historyStore stores the accepted specs of Blueprints as ControllerRevisions.
type historyStore struct {
	cache     cache
	client    dynamic.Interface
	namespace string
	kinds     kindFinder
	instances instances.Engine
}

func (s *historyStore) revisions() dynamic.ResourceInterface {
	return s.client.Resource(controllerRevisions).Namespace(s.namespace)
}

// store stores the accepted spec, unless the newest stored revision already contains it. A spec is served only after it
// has been stored, so that all replicas can read it. dryRun has the same meaning as in [metav1.CreateOptions].
//
// store returns false if the spec is not stored because the cached Blueprint or the cached revision is outdated. An
// event then triggers another reconcile. If there is no spec to store, store returns true.
func (s *historyStore) store(
	ctx context.Context, b *blueprint.Blueprint, d decision, dryRun ...string,
) (stored bool, err error) {
	if d.revision == nil || d.deleting {
		return true, nil
	}
	h, err := s.cache.history(b.Name)
	if err != nil {
		return false, err
	}
	name, newest := d.revision.Name, h.newest(b.UID)
	switch {
	case newest != nil && newest.generation > b.Generation:
		return false, nil
	case newest != nil && newest.Name == name && newest.generation == b.Generation:
		return true, nil
	}
	accepted := *b
	accepted.Spec.ServiceAccountName = d.revision.Spec.ServiceAccountName // as resolved by the validation
	if stored, err = s.write(ctx, &accepted, name, h, dryRun); err != nil {
		return false, fmt.Errorf("store the accepted spec as ControllerRevision %s/%s: %w", s.namespace, name, err)
	}
	return stored, nil
}

// write is like store. It first reads the Blueprint from the API server, because the cache of a new leader can contain
// an earlier generation, or a Blueprint that has been deleted. Nothing would delete a revision that is created for a
// deleted Blueprint.
func (s *historyStore) write(
	ctx context.Context, b *blueprint.Blueprint, name string, h history, dryRun []string,
) (stored bool, err error) {
	if current, err := isCurrent(ctx, s.client, b); err != nil || !current {
		return false, err
	}
	number := h.nextNumber(b.UID)
	if known := h.get(b.UID, name); known != nil {
		if known == h.newest(b.UID) {
			number = known.number
		}
		return s.renumber(ctx, b, known, number, dryRun)
	}
	object, err := newRevision(s.namespace, name, b, number)
	if err != nil {
		return false, err
	}
	_, err = s.revisions().Create(ctx, object, metav1.CreateOptions{FieldManager: instances.Name, DryRun: dryRun})
	if !apierrors.IsAlreadyExists(err) {
		return err == nil, err
	}
	existing, err := s.revisions().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	read, err := readRevision(existing)
	if err != nil {
		return false, err
	}
	r := read.(*revision)
	if r.blueprint != b.Name || r.blueprintUID != b.UID {
		return false, fmt.Errorf("the existing ControllerRevision belongs to Blueprint %s with UID %s; "+
			"delete the ControllerRevision", r.blueprint, r.blueprintUID)
	}
	return s.renumber(ctx, b, r, max(number, r.number), dryRun)
}

// renumber updates a stored revision whose spec has been accepted again. It sets the generation to that of b, and the
// number to the given one. If the number changes, because a different spec was accepted in between, renumber also
// records the time.
func (s *historyStore) renumber(
	ctx context.Context, b *blueprint.Blueprint, r *revision, number int64, dryRun []string,
) (stored bool, err error) {
	annotations := map[string]any{generationAnnotation: strconv.FormatInt(b.Generation, 10)}
	if number != r.number {
		annotations[acceptedAnnotation] = time.Now().UTC().Format(time.RFC3339)
	}
	return s.patch(ctx, r, map[string]any{
		"metadata": map[string]any{
			"labels":      map[string]any{blueprintLabel: instances.LabelValue(b.Name)},
			"annotations": annotations,
		},
		"revision": number,
	}, dryRun)
}

// rollingOut returns the cached newest revision if it is served in steps, and nil otherwise.
func (s *historyStore) rollingOut(b *blueprint.Blueprint, d decision) (*revision, error) {
	if d.gate() == nil {
		return nil, nil
	}
	h, err := s.cache.history(b.Name)
	newest := h.newest(b.UID)
	if err != nil || newest == nil || newest.Name != d.running.Name {
		return nil, err
	}
	return newest, nil
}

// restoreRollout passes the stored progress of the rollout to its gate. A new leader must call it before it counts the
// instances.
func (s *historyStore) restoreRollout(b *blueprint.Blueprint, d decision) error {
	r, err := s.rollingOut(b, d)
	if r != nil {
		d.gate().SetRecorded(r.admitted)
	}
	return err
}

// storeRollout records that all instances have moved to the served revision or, before that, how many instances have
// been allowed to move.
func (s *historyStore) storeRollout(ctx context.Context, b *blueprint.Blueprint, d decision) error {
	r, err := s.rollingOut(b, d)
	if r == nil || r.rolledOut {
		return err
	}
	annotations := map[string]any{}
	admitted, changed := d.gate().Admitted()
	switch number := strconv.FormatInt(r.number, 10); {
	case d.gate().IsDone():
		annotations[rolledOutAnnotation] = number
	case changed && admitted > r.admitted:
		annotations[admittedAnnotation] = number + "/" + strconv.Itoa(admitted)
	default:
		return nil
	}
	_, err = s.patch(ctx, r, map[string]any{"metadata": map[string]any{"annotations": annotations}}, nil)
	return err
}

// patch applies a merge patch to a stored revision. It does nothing and returns false if the cached revision is
// outdated. The event of the newer one then triggers another reconcile.
func (s *historyStore) patch(
	ctx context.Context, r *revision, change map[string]any, dryRun []string,
) (patched bool, err error) {
	metadata := change["metadata"].(map[string]any)
	metadata["uid"], metadata["resourceVersion"] = r.UID, r.ResourceVersion
	data, err := json.Marshal(change)
	if err != nil {
		return false, err
	}
	options := metav1.PatchOptions{FieldManager: instances.Name, DryRun: dryRun}
	_, err = s.revisions().Patch(ctx, r.Name, types.MergePatchType, data, options)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// isCurrent reports whether b is the Blueprint's newest generation in the API server and is not being deleted.
func isCurrent(ctx context.Context, client dynamic.Interface, b *blueprint.Blueprint) (bool, error) {
	live, err := client.Resource(blueprints).Get(ctx, b.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the Blueprint: %w", err)
	}
	return live.GetUID() == b.UID && live.GetGeneration() == b.Generation && live.GetDeletionTimestamp() == nil, nil
}

// restore returns a copy of b with the spec of a stored revision, which it reads from the API server. The copy keeps
// the deletion policy and the history limit of b.
func (s *historyStore) restore(
	ctx context.Context, b *blueprint.Blueprint, r *revision,
) (*blueprint.Blueprint, error) {
	live, err := s.revisions().Get(ctx, r.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read revision %s: %w", r.Name, err)
	}
	if live.GetUID() != r.UID {
		return nil, fmt.Errorf("read revision %s: the cached UID is outdated", r.Name)
	}
	data, err := decodeRevision(live)
	if err != nil {
		return nil, fmt.Errorf("decode revision %s: %w", r.Name, err)
	}
	restored := *b
	restored.Annotations = maps.Clone(b.Annotations)
	if restored.Annotations == nil {
		restored.Annotations = map[string]string{}
	}
	// These annotations describe the newest spec, not the stored one.
	delete(restored.Annotations, blueprint.OversizedAnnotation)
	delete(restored.Annotations, blueprint.UnknownFieldsAnnotation)
	// The type can be that of a later generation: see adopt. Serving the stored spec does not change the type back.
	restored.Annotations[incompatibleAnnotation] = strconv.FormatInt(r.generation, 10)
	spec, _, _ := unstructured.NestedFieldNoCopy(live.Object, "data", "spec")
	if fields := blueprint.UnknownFields(spec.(map[string]any)); fields != "" {
		restored.Annotations[blueprint.UnknownFieldsAnnotation] = fields
	}
	restored.Generation, restored.Spec = r.generation, data.Spec
	restored.Spec.DeletionPolicy, restored.Spec.RevisionHistoryLimit = b.Spec.DeletionPolicy, b.Spec.RevisionHistoryLimit
	return &restored, nil
}

// trim deletes the oldest revisions beyond the Blueprint's history limit. The served revision does not count towards
// the limit and is never deleted. A revision is kept while instances are reconciled with it. It is also kept while
// instances can have children of a kind that no newer revision contains. The returned error can be a requeue request.
func (s *historyStore) trim(ctx context.Context, b *blueprint.Blueprint, d decision) error {
	if d.undecided != nil {
		return nil
	}
	h, err := s.cache.history(b.Name)
	newest := h.newest(b.UID)
	if err != nil || newest == nil {
		return err
	}
	old := h.beyond(b.UID, int(ptr.Deref(b.Spec.RevisionHistoryLimit, defaultHistoryLimit)))
	var kept []children.Kind
	for _, r := range h {
		if !slices.Contains(old, r) {
			kept = append(kept, s.kindsOf(r)...)
		}
	}
	var errs []error
	var again error
	for _, r := range old {
		kinds := s.kindsOf(r)
		unused, retry := includes(kept, kinds), time.Duration(0)
		if !unused {
			unused, retry = s.areUnused(kinds, d, newest)
		}
		if unused && !d.isInUse(r.Name) {
			errs = append(errs, s.delete(ctx, r.Name, r.UID))
			continue
		}
		kept = append(kept, kinds...)
		if retry > 0 {
			again = dynamiccontroller.RequeueAfter(retry)
		}
	}
	return cmp.Or(errors.Join(errs...), again)
}

// list reads the ControllerRevisions of Blueprints with the given name from the API server.
func (s *historyStore) list(ctx context.Context, name string) ([]unstructured.Unstructured, error) {
	selector := labels.SelectorFromSet(labels.Set{blueprintLabel: instances.LabelValue(name)}).String()
	list, err := s.revisions().List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("list the stored revisions: %w", err)
	}
	return list.Items, nil
}

// hasLive reports whether the API server contains a stored revision of the Blueprint.
func (s *historyStore) hasLive(ctx context.Context, b *blueprint.Blueprint) (bool, error) {
	items, err := s.list(ctx, b.Name)
	return slices.ContainsFunc(items, func(object unstructured.Unstructured) bool {
		data, err := decodeRevision(&object)
		return err == nil && data.Blueprint == b.Name && data.UID == b.UID // like the cache, ignore malformed revisions
	}), err
}

// deleteHistory deletes the revisions of a Blueprint that is being deleted. If all is true, it deletes the revisions of
// all Blueprints with the same name.
func (s *historyStore) deleteHistory(ctx context.Context, b *blueprint.Blueprint, all bool) error {
	items, err := s.list(ctx, b.Name)
	if err != nil {
		return err
	}
	var errs []error
	for i := range items {
		object := &items[i]
		name, _, _ := unstructured.NestedString(object.Object, "data", "blueprint")
		uid, _, _ := unstructured.NestedString(object.Object, "data", "uid")
		if name == b.Name && (all || uid == string(b.UID)) {
			errs = append(errs, s.delete(ctx, object.GetName(), object.GetUID()))
		}
	}
	return errors.Join(errs...)
}

func (s *historyStore) delete(ctx context.Context, name string, uid types.UID) error {
	options := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(uid)}}
	err := s.revisions().Delete(ctx, name, options)
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete the stored revision %s: %w", name, err)
	}
	return nil
}
