package platform

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// defaultHistoryLimit is the number of old revisions to keep if the Blueprint does not set one.
const defaultHistoryLimit = 10

// watchRevisions watches the stored revisions. A change reconciles the Blueprint of the revision and all Blueprints
// that claim the same type.
func (p *Platform) watchRevisions() dynamiccontroller.Watch {
	stored, err := labels.NewRequirement(revisionLabelKey, selection.Exists, nil)
	if err != nil {
		panic(err) // the key is a constant
	}
	return dynamiccontroller.Watches(controllerRevisions, func(_ context.Context, object dynamiccontroller.Object) []string {
		r, ok := object.Object().(*revision)
		if !ok {
			return nil // malformed: the error of readRevision has been logged
		}
		return append(p.registry.rivals(r.blueprint), r.blueprint)
	}, dynamiccontroller.WithNamespace(p.options.Namespace), dynamiccontroller.WithLabelSelector(labels.NewSelector().Add(*stored)),
		dynamiccontroller.WithCache(dynamiccontroller.CacheFull), dynamiccontroller.WithTransform(readRevision))
}

// historyOf returns the cached revisions of Blueprints with the name. Until all revisions have been read, it returns
// [dynamiccontroller.ErrNotSynced].
func (p *Platform) historyOf(name string) (history, error) {
	lister, err := p.engines.Definitions.SecondaryLister(blueprints, p.watchRevisions().Key())
	if err != nil {
		return nil, err
	}
	all, err := lister.List(labels.SelectorFromSet(labels.Set{revisionLabelKey: revisionLabel(name)}))
	if err != nil {
		return nil, err
	}
	var h history
	for _, object := range all {
		if r, ok := object.(*revision); ok && r.blueprint == name {
			h = append(h, r)
		}
	}
	return h, nil
}

// storedUIDs returns the UIDs of all Blueprints of which an accepted spec is stored.
func (p *Platform) storedUIDs() (map[types.UID]bool, error) {
	lister, err := p.engines.Definitions.SecondaryLister(blueprints, p.watchRevisions().Key())
	if err != nil {
		return nil, err
	}
	all, err := lister.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	stored := map[types.UID]bool{}
	for _, object := range all {
		if r, ok := object.(*revision); ok {
			stored[r.blueprintUID] = true
		}
	}
	return stored, nil
}

// revisionsProblem returns why the revisions cannot be read. It is empty if they have been read or are being read.
func (p *Platform) revisionsProblem() string {
	for _, t := range p.engines.Definitions.Status() {
		if t.GVR != blueprints {
			continue
		}
		for _, s := range t.Secondaries {
			if s.GVR != controllerRevisions {
				continue
			}
			switch s.State {
			case dynamiccontroller.TypeSyncing, dynamiccontroller.TypeSynced, dynamiccontroller.TypeStopped:
				return ""
			}
			return fmt.Sprintf("cannot read the stored revisions: %s; the platform needs get, list, watch, create, patch and delete on "+
				"controllerrevisions.apps in namespace %s", s.Message, p.options.Namespace)
		}
	}
	return ""
}

func (p *Platform) revisionClient() dynamic.ResourceInterface {
	return p.client.Resource(controllerRevisions).Namespace(p.options.Namespace)
}

// storeRevision stores the accepted spec, unless it already is the newest stored one. The spec is not served before it
// is stored where all replicas can read it.
func (p *Platform) storeRevision(ctx context.Context, b *blueprint.Blueprint, d decision) error {
	if d.program == nil || d.ending {
		return nil
	}
	h, err := p.historyOf(b.Name)
	if err != nil {
		return err
	}
	name, newest := d.program.revision, h.newest(b.UID)
	if newest != nil && (newest.generation > b.Generation || newest.Name == name && newest.generation == b.Generation) {
		return nil // it is stored, or the cached Blueprint is not the newest
	}
	if err := p.writeRevision(ctx, b, name, h); err != nil {
		return fmt.Errorf("store the accepted spec as ControllerRevision %s/%s: %w", p.options.Namespace, name, err)
	}
	return nil
}

func (p *Platform) writeRevision(ctx context.Context, b *blueprint.Blueprint, name string, h history) error {
	number := h.nextNumber(b.UID)
	for _, r := range h {
		if r.Name == name && r.blueprintUID == b.UID {
			if r == h.newest(b.UID) {
				number = r.number
			}
			return p.renumber(ctx, b, r, number)
		}
	}
	// The cache of a new leader can hold a Blueprint that is gone. Its revision would never be deleted.
	if current, err := p.isCurrent(ctx, b); err != nil || !current {
		return err
	}
	object, err := newRevision(p.options.Namespace, name, b, number)
	if err != nil {
		return err
	}
	_, err = p.revisionClient().Create(ctx, object, metav1.CreateOptions{FieldManager: Name})
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	there, err := p.revisionClient().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	known, err := readRevision(there)
	if err != nil {
		return err
	}
	r := known.(*revision)
	if r.blueprint != b.Name || r.blueprintUID != b.UID {
		return fmt.Errorf("it exists and belongs to another Blueprint (%s, UID %s): delete it", r.blueprint, r.blueprintUID)
	}
	return p.renumber(ctx, b, r, max(number, r.number))
}

// renumber assigns a stored revision to the Blueprint's newest generation.
func (p *Platform) renumber(ctx context.Context, b *blueprint.Blueprint, r *revision, number int64) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{
			"uid": r.UID, "resourceVersion": r.ResourceVersion,
			"labels":      map[string]any{revisionLabelKey: revisionLabel(b.Name)},
			"annotations": map[string]any{generationKey: strconv.FormatInt(b.Generation, 10)},
		},
		"revision": number,
	})
	if err != nil {
		return err
	}
	_, err = p.revisionClient().Patch(ctx, r.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: Name})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // the cache lags: the revision's event reconciles the Blueprint
	}
	return err
}

// isCurrent reports whether the API server has this generation of the Blueprint, and it is not being deleted.
func (p *Platform) isCurrent(ctx context.Context, b *blueprint.Blueprint) (bool, error) {
	live, err := p.client.Resource(blueprints).Get(ctx, b.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the Blueprint: %w", err)
	}
	return live.GetUID() == b.UID && live.GetGeneration() == b.Generation && live.GetDeletionTimestamp() == nil, nil
}

// trimHistory deletes the oldest revisions beyond the Blueprint's limit. The served one does not count and is never deleted.
// The kinds of deleted revisions are recorded as long as instances may have children of them.
func (p *Platform) trimHistory(ctx context.Context, b *blueprint.Blueprint, d decision) error {
	if d.revisionsProblem != "" {
		return nil
	}
	h, err := p.historyOf(b.Name)
	newest := h.newest(b.UID)
	if err != nil || newest == nil {
		return err
	}
	old := h.beyond(b.UID, int(ptr.Deref(b.Spec.RevisionHistoryLimit, defaultHistoryLimit)))
	if len(old) == 0 {
		return p.dropFormerKinds(ctx, b, d, h)
	}
	if kept, err := p.keepKinds(ctx, newest, old); err != nil || !kept {
		return err
	}
	var errs []error
	for _, r := range old {
		errs = append(errs, p.deleteRevision(ctx, r.Name, r.UID))
	}
	return errors.Join(errs...)
}

// deleteHistory deletes the revisions of a Blueprint that is being deleted: those with its UID, or all with its name.
func (p *Platform) deleteHistory(ctx context.Context, b *blueprint.Blueprint, all bool) error {
	selector := labels.SelectorFromSet(labels.Set{revisionLabelKey: revisionLabel(b.Name)}).String()
	list, err := p.revisionClient().List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return fmt.Errorf("list the stored revisions: %w", err)
	}
	var errs []error
	for i := range list.Items {
		object := &list.Items[i]
		name, _, _ := unstructured.NestedString(object.Object, "data", "blueprint")
		uid, _, _ := unstructured.NestedString(object.Object, "data", "uid")
		if name == b.Name && (all || uid == string(b.UID)) {
			errs = append(errs, p.deleteRevision(ctx, object.GetName(), object.GetUID()))
		}
	}
	return errors.Join(errs...)
}

func (p *Platform) deleteRevision(ctx context.Context, name string, uid types.UID) error {
	err := p.revisionClient().Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(uid)}})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete the stored revision %s: %w", name, err)
	}
	return nil
}
