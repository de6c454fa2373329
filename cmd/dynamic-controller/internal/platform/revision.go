package platform

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/handlers"
)

var (
	controllerRevisions    = appsv1.SchemeGroupVersion.WithResource("controllerrevisions")
	controllerRevisionKind = appsv1.SchemeGroupVersion.WithKind("ControllerRevision")
)

// revision is an accepted spec of a Blueprint. It is stored in a ControllerRevision in the platform's own namespace, whose
// data the API server keeps immutable. The cache holds revisions in this form, without the spec, because there can be many
// large ones. They must not be changed.
type revision struct {
	metav1.TypeMeta
	metav1.ObjectMeta

	// blueprint and blueprintUID identify the Blueprint whose spec it is.
	blueprint    string
	blueprintUID types.UID
	// generation is the last generation of the Blueprint that had this spec.
	generation int64
	// number counts the changes of the Blueprint's accepted spec. A spec that is applied again gets a new number.
	number int64
	// memory is the estimated memory that serving the spec needs.
	memory int64
	// kinds are those of the spec's templates.
	kinds []templateKind
	// former are kinds of revisions that have been deleted.
	former []handlers.ChildKind
}

// templateKind is the kind of a template.
type templateKind struct {
	schema.GroupVersionKind
	// hasNamespace reports whether a template of the kind sets metadata.namespace.
	hasNamespace bool
}

// DeepCopyObject implements [runtime.Object]. The copy shares the kinds, which are never changed.
func (r *revision) DeepCopyObject() runtime.Object {
	next := *r
	r.ObjectMeta.DeepCopyInto(&next.ObjectMeta)
	return &next
}

// revisionData is the data of a ControllerRevision.
type revisionData struct {
	Blueprint string         `json:"blueprint"`
	UID       types.UID      `json:"uid"`
	Spec      blueprint.Spec `json:"spec"`
}

// revisionDataOf returns the data to store, without the history limit, which does not affect serving.
func revisionDataOf(b *blueprint.Blueprint) revisionData {
	data := revisionData{Blueprint: b.Name, UID: b.UID, Spec: b.Spec}
	data.Spec.RevisionHistoryLimit = nil
	return data
}

// revisionName returns the name of the ControllerRevision with the Blueprint's spec. It depends only on the Blueprint's
// name, UID and spec, so that a spec is stored once, even if it is applied again or the write is retried.
func revisionName(b *blueprint.Blueprint) (string, error) {
	data, err := json.Marshal(revisionDataOf(b))
	if err != nil {
		return "", fmt.Errorf("encode the spec of Blueprint %s: %w", b.Name, err)
	}
	const hashed = 16 // bytes of the hash
	sum := sha256.Sum256(data)
	prefix := b.Name[:min(len(b.Name), validation.DNS1123SubdomainMaxLength-2*hashed-1)]
	return strings.TrimRight(prefix, ".-") + "-" + hex.EncodeToString(sum[:hashed]), nil
}

// revisionLabel returns the value of the label by which the revisions of a Blueprint are found: its name, or a shorter form
// of a name that is too long for a label. Names shortened to the same value are distinguished by the revision's data.
func revisionLabel(blueprintName string) string {
	if len(blueprintName) <= validation.LabelValueMaxLength {
		return blueprintName
	}
	const kept, hashed = 30, 16
	sum := sha256.Sum256([]byte(blueprintName))
	return strings.TrimRight(blueprintName[:kept], ".-") + "-" + hex.EncodeToString(sum[:hashed])
}

// newRevision returns the ControllerRevision to create for the Blueprint's spec.
func newRevision(namespace, name string, b *blueprint.Blueprint, number int64) (*unstructured.Unstructured, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(ptr.To(revisionDataOf(b)))
	if err != nil {
		return nil, fmt.Errorf("encode the spec of Blueprint %s: %w", b.Name, err)
	}
	object := &unstructured.Unstructured{Object: map[string]any{"data": content, "revision": number}}
	object.SetGroupVersionKind(controllerRevisionKind)
	object.SetNamespace(namespace)
	object.SetName(name)
	object.SetLabels(map[string]string{revisionLabelKey: revisionLabel(b.Name)})
	object.SetAnnotations(map[string]string{generationKey: strconv.FormatInt(b.Generation, 10)})
	return object, nil
}

// readRevision is a cache transform. It returns the revision that is stored in a ControllerRevision. For a malformed
// one it returns an error. The cache then keeps the ControllerRevision unchanged, and readers ignore it.
func readRevision(obj any) (any, error) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return obj, nil
	}
	data, err := decodeRevision(u)
	if err != nil {
		return nil, fmt.Errorf("ignoring the malformed ControllerRevision %s/%s: %w", u.GetNamespace(), u.GetName(), err)
	}
	number, _, _ := unstructured.NestedInt64(u.Object, "revision")
	generation, _ := strconv.ParseInt(u.GetAnnotations()[generationKey], 10, 64)
	r := &revision{
		blueprint: data.Blueprint, blueprintUID: data.UID, generation: generation, number: number,
		memory: data.Spec.Memory(), kinds: templateKinds(data.Spec.Resources),
		former: decodeKinds(u.GetAnnotations()[formerKindsKey]),
	}
	r.SetGroupVersionKind(u.GroupVersionKind())
	r.Namespace, r.Name, r.UID, r.ResourceVersion = u.GetNamespace(), u.GetName(), u.GetUID(), u.GetResourceVersion()
	r.Labels, r.Annotations, r.CreationTimestamp = u.GetLabels(), u.GetAnnotations(), u.GetCreationTimestamp()
	return r, nil
}

// decodeRevision returns the data of a ControllerRevision.
func decodeRevision(u *unstructured.Unstructured) (data revisionData, err error) {
	content, _ := u.Object["data"].(map[string]any)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, &data); err != nil {
		return data, err
	}
	if _, has := content["spec"].(map[string]any); !has || data.Blueprint == "" || data.UID == "" {
		return data, errors.New("data must have blueprint, uid and spec")
	}
	return data, nil
}

func templateKinds(resources []blueprint.Resource) (kinds []templateKind) {
	for _, r := range resources {
		metadata, _ := r.Template["metadata"].(map[string]any)
		_, hasNamespace := metadata["namespace"]
		gvk := kindOf(r)
		i := slices.IndexFunc(kinds, func(k templateKind) bool { return k.GroupVersionKind == gvk })
		if i < 0 {
			kinds = append(kinds, templateKind{GroupVersionKind: gvk})
			i = len(kinds) - 1
		}
		kinds[i].hasNamespace = kinds[i].hasNamespace || hasNamespace
	}
	return kinds
}

// restore reads the revision from the API server and returns the Blueprint as it was when the revision was stored. The
// deletion policy and the history limit remain those of the newest generation.
func (p *Platform) restore(ctx context.Context, b *blueprint.Blueprint, r *revision) (*blueprint.Blueprint, error) {
	live, err := p.revisionClient().Get(ctx, r.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read revision %s: %w", r.Name, err)
	}
	if live.GetUID() != r.UID {
		return nil, fmt.Errorf("read revision %s: it has been replaced", r.Name) // the cache lags
	}
	data, err := decodeRevision(live)
	if err != nil {
		return nil, fmt.Errorf("decode revision %s: %w", r.Name, err)
	}
	before := *b
	before.Annotations = maps.Clone(b.Annotations)
	delete(before.Annotations, blueprint.OversizedAnnotation) // it is about the newest spec
	before.Generation, before.Spec = r.generation, data.Spec
	before.Spec.DeletionPolicy, before.Spec.RevisionHistoryLimit = b.Spec.DeletionPolicy, b.Spec.RevisionHistoryLimit
	return &before, nil
}

// history contains the stored revisions of Blueprints with one name. It includes those of deleted Blueprints with the
// deletion policy Retain.
type history []*revision

// newest returns the last accepted revision of the Blueprint with the UID, or nil. Revisions of other Blueprints with
// the same name are never served.
func (h history) newest(uid types.UID) (newest *revision) {
	for _, r := range h {
		if r.blueprintUID == uid && (newest == nil || isNewer(r, newest)) {
			newest = r
		}
	}
	return newest
}

// has reports whether the Blueprint with the UID has a revision of the name.
func (h history) has(uid types.UID, name string) bool {
	return slices.ContainsFunc(h, func(r *revision) bool { return r.blueprintUID == uid && r.Name == name })
}

// nextNumber returns a number higher than those of all revisions of the Blueprint with the UID.
func (h history) nextNumber(uid types.UID) int64 {
	next := int64(1)
	for _, r := range h {
		if r.blueprintUID == uid {
			next = max(next, r.number+1)
		}
	}
	return next
}

// beyond returns the revisions to delete, the oldest last, so that limit revisions are left in addition to the served
// one. Revisions of earlier Blueprints count as older than those of the Blueprint with the UID.
func (h history) beyond(uid types.UID, limit int) []*revision {
	served := h.newest(uid)
	old := slices.DeleteFunc(slices.Clone(h), func(r *revision) bool { return r == served })
	slices.SortFunc(old, func(a, b *revision) int {
		if ours := a.blueprintUID == uid; ours != (b.blueprintUID == uid) {
			if ours {
				return -1
			}
			return 1
		}
		if a.blueprintUID != b.blueprintUID {
			return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
		}
		if isNewer(a, b) {
			return -1
		}
		return 1
	})
	return old[min(limit, len(old)):]
}

// isNewer reports whether a was accepted after b. Both are of the same Blueprint. The generation is compared first, so
// that a leader with a stale cache cannot make an older spec the newest one.
func isNewer(a, b *revision) bool {
	return cmp.Or(cmp.Compare(a.generation, b.generation), cmp.Compare(a.number, b.number), strings.Compare(a.Name, b.Name)) > 0
}
