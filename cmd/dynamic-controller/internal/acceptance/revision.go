package acceptance

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	apivalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
)

var (
	controllerRevisions    = appsv1.SchemeGroupVersion.WithResource("controllerrevisions")
	controllerRevisionKind = appsv1.SchemeGroupVersion.WithKind("ControllerRevision")
)

// revision is an accepted spec of a Blueprint. It is stored in a ControllerRevision in the platform's own namespace.
// The data of a ControllerRevision is immutable. The cache holds revisions in this form, without the spec, because
// there can be many large specs. Cached revisions must not be modified.
type revision struct {
	metav1.TypeMeta
	metav1.ObjectMeta

	// blueprint and blueprintUID identify the Blueprint that the spec belongs to.
	blueprint    string
	blueprintUID types.UID
	// generation is the last generation of the Blueprint that had this spec.
	generation int64
	// number counts the changes of the Blueprint's accepted spec. A spec that is applied again gets a new number.
	number int64
	// memory is the estimated memory that serving the spec needs.
	memory int64
	// serviceAccount is the name of the ServiceAccount. It is empty for the platform's own identity.
	serviceAccount string
	// kinds are the kinds of the spec's templates.
	kinds []templateKind
	// templates is a digest of the fields that determine the children of an instance.
	templates string
	// accepted is the time at which the spec last became the newest accepted one.
	accepted time.Time
}

// templateKind is the kind of a template.
type templateKind struct {
	schema.GroupVersionKind
	// setsNamespace reports whether a template of the kind sets metadata.namespace.
	setsNamespace bool
}

// DeepCopyObject implements [runtime.Object]. Both revisions share the slice of kinds, which is never modified.
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

// revisionDataOf returns the data to store. It omits the history limit, which does not affect serving. The name of the
// Blueprint's ServiceAccount must already be resolved, so that a change of the default leads to a new revision.
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
	prefix := b.Name[:min(len(b.Name), apivalidation.DNS1123SubdomainMaxLength-2*hashed-1)]
	return strings.TrimRight(prefix, ".-") + "-" + hex.EncodeToString(sum[:hashed]), nil
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
	object.SetLabels(map[string]string{blueprintLabel: instances.LabelValue(b.Name)})
	object.SetAnnotations(map[string]string{generationAnnotation: strconv.FormatInt(b.Generation, 10)})
	return object, nil
}

// readRevision is a cache transform. It returns the revision that is stored in a ControllerRevision. If the
// ControllerRevision is malformed, it returns an error. The cache then keeps the ControllerRevision unchanged, and
// readers ignore it.
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
	generation, _ := strconv.ParseInt(u.GetAnnotations()[generationAnnotation], 10, 64)
	r := &revision{
		blueprint: data.Blueprint, blueprintUID: data.UID, generation: generation, number: number,
		memory: data.Spec.Memory(), serviceAccount: data.Spec.ServiceAccountName, kinds: templateKinds(data.Spec.Resources),
		accepted: u.GetCreationTimestamp().Time,
	}
	if r.templates, err = templatesDigest(data.Spec); err != nil {
		return nil, fmt.Errorf("encode the templates of the ControllerRevision %s/%s: %w", u.GetNamespace(), u.GetName(), err)
	}
	if again, err := time.Parse(time.RFC3339, u.GetAnnotations()[acceptedAnnotation]); err == nil {
		r.accepted = again
	}
	r.SetGroupVersionKind(u.GroupVersionKind())
	r.Namespace, r.Name, r.UID, r.ResourceVersion = u.GetNamespace(), u.GetName(), u.GetUID(), u.GetResourceVersion()
	r.Labels, r.Annotations, r.CreationTimestamp = u.GetLabels(), u.GetAnnotations(), u.GetCreationTimestamp()
	return r, nil
}

// templatesDigest returns a digest of the fields of a spec that determine the children of an instance.
func templatesDigest(spec blueprint.Spec) (string, error) {
	data, err := json.Marshal([]any{spec.Resources, spec.ServiceAccountName, spec.AllowedNamespaces})
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:16]), err
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
		gvk := kindOf(r)
		i := slices.IndexFunc(kinds, func(k templateKind) bool { return k.GroupVersionKind == gvk })
		if i < 0 {
			kinds = append(kinds, templateKind{GroupVersionKind: gvk})
			i = len(kinds) - 1
		}
		kinds[i].setsNamespace = kinds[i].setsNamespace || setsNamespace(r)
	}
	return kinds
}

// history contains the stored revisions of all Blueprints with the same name, including deleted Blueprints with the
// deletion policy Retain.
type history []*revision

// newest returns the last accepted revision of the Blueprint with the given UID, or nil without one. Revisions of
// other Blueprints with the same name are never served.
func (h history) newest(uid types.UID) (newest *revision) {
	for _, r := range h {
		if r.blueprintUID == uid && (newest == nil || isNewer(r, newest)) {
			newest = r
		}
	}
	return newest
}

// get returns the revision with the given name if it belongs to the Blueprint with the given UID, and nil otherwise.
func (h history) get(uid types.UID, name string) *revision {
	for _, r := range h {
		if r.blueprintUID == uid && r.Name == name {
			return r
		}
	}
	return nil
}

// nextNumber returns a number that is higher than the number of any revision of the Blueprint with the given UID.
func (h history) nextNumber(uid types.UID) int64 {
	next := int64(1)
	for _, r := range h {
		if r.blueprintUID == uid {
			next = max(next, r.number+1)
		}
	}
	return next
}

// beyond returns the revisions to delete, from newest to oldest, so that limit revisions are left in addition to the
// served one. Revisions of earlier Blueprints count as older than those of the Blueprint with the given UID.
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

// isNewer reports whether a was accepted after b. Both must belong to the same Blueprint. The generation is compared
// first, so that a leader with a stale cache cannot make an older spec the newest one.
func isNewer(a, b *revision) bool {
	return cmp.Or(
		cmp.Compare(a.generation, b.generation), cmp.Compare(a.number, b.number), strings.Compare(a.Name, b.Name),
	) > 0
}
