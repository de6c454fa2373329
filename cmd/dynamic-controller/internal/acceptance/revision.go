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
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/rollout"
)

var (
	controllerRevisions    = appsv1.SchemeGroupVersion.WithResource("controllerrevisions")
	controllerRevisionKind = appsv1.SchemeGroupVersion.WithKind("ControllerRevision")
)

// revision is an accepted spec of a Blueprint. It is stored in a ControllerRevision in the platform's namespace. The
// data of a ControllerRevision is immutable. Revisions are cached without their specs, because specs can be large.
// Cached revisions must not be modified.
type revision struct {
	metav1.TypeMeta
	metav1.ObjectMeta

	// blueprint and blueprintUID identify the Blueprint of the spec.
	blueprint    string
	blueprintUID types.UID
	// generation is the latest generation of the Blueprint that had this spec.
	generation int64
	// number increases when the Blueprint's accepted spec changes. A spec that is applied again gets a new number.
	number int64
	// memory is the estimated memory that serving the spec needs.
	memory int64
	// serviceAccount is the name of the ServiceAccount. It is empty for the platform's own identity.
	serviceAccount string
	// kinds are the kinds of the spec's templates and references.
	kinds []templateKind
	// templates is a digest of the fields that determine an instance's children and status.
	templates string
	// accepted is the time at which the spec last became the accepted spec.
	accepted time.Time
	// rolledOut reports whether all instances have moved to the revision since then, except for paused and stuck ones.
	rolledOut bool
	// admitted is the number of existing instances that were allowed to move to the revision since then. It is
	// rollout.Everyone if rolledOut is true.
	admitted int
}

// templateKind is the kind of a template or a reference.
type templateKind struct {
	schema.GroupVersionKind
	// setsNamespace reports whether a template of the kind sets metadata.namespace.
	setsNamespace bool
	// isReference reports whether the kind is used by a reference. Referenced objects are not children.
	isReference bool
}

// DeepCopyObject implements [runtime.Object]. The copy shares the slice of kinds, which is never modified.
func (r *revision) DeepCopyObject() runtime.Object {
	next := *r
	r.ObjectMeta.DeepCopyInto(&next.ObjectMeta)
	return &next
}

// revisionFormat is the format of the data of a ControllerRevision. A new format is written one version after it can be
// read. An older version ignores it, and stores the spec again under another name.
const revisionFormat = 1

// revisionData is the data of a ControllerRevision.
type revisionData struct {
	Format    int            `json:"format,omitempty"` // omitted for format 1
	Blueprint string         `json:"blueprint"`
	UID       types.UID      `json:"uid"`
	Spec      blueprint.Spec `json:"spec"`
}

// revisionDataOf returns the data to store. It omits the history limit, which does not affect serving. The
// ServiceAccount name must already be resolved, so that changing the default ServiceAccount creates a new revision.
func revisionDataOf(b *blueprint.Blueprint) revisionData {
	data := revisionData{Blueprint: b.Name, UID: b.UID, Spec: b.Spec}
	data.Spec.RevisionHistoryLimit = nil
	return data
}

// revisionName returns the name of the ControllerRevision for the Blueprint's spec. It depends only on the Blueprint's
// name, UID and spec. A spec is therefore stored once, even if it is applied again or a write is retried.
func revisionName(b *blueprint.Blueprint) (string, error) {
	hash, err := digest(revisionDataOf(b))
	if err != nil {
		return "", fmt.Errorf("encode the spec of Blueprint %s: %w", b.Name, err)
	}
	prefix := b.Name[:min(len(b.Name), apivalidation.DNS1123SubdomainMaxLength-len(hash)-1)]
	return strings.TrimRight(prefix, ".-") + "-" + hash, nil
}

// digest returns a hash of the JSON encoding of value.
func digest(value any) (string, error) {
	data, err := json.Marshal(value)
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:16]), err
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

// readRevision is a cache transform. It returns the revision that is stored in a ControllerRevision, or an error if the
// ControllerRevision is malformed. The cache keeps malformed ControllerRevisions unchanged, and readers ignore them.
func readRevision(obj any) (any, error) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return obj, nil
	}
	data, err := decodeRevision(u)
	if err != nil {
		return nil, fmt.Errorf("ControllerRevision %s/%s is malformed and is ignored: %w", u.GetNamespace(), u.GetName(), err)
	}
	number, _, _ := unstructured.NestedInt64(u.Object, "revision")
	generation, _ := strconv.ParseInt(u.GetAnnotations()[generationAnnotation], 10, 64)
	r := &revision{
		blueprint: data.Blueprint, blueprintUID: data.UID, generation: generation, number: number,
		memory: data.Spec.Memory(), serviceAccount: data.Spec.ServiceAccountName, kinds: templateKinds(data.Spec.Resources),
		accepted: u.GetCreationTimestamp().Time,
	}
	t := data.Spec.Type
	r.templates, err = digest([]any{
		data.Spec.Resources, data.Spec.ServiceAccountName, data.Spec.AllowedNamespaces, t.Status, t.Conditions,
	})
	if err != nil {
		return nil, fmt.Errorf("encode the templates of the ControllerRevision %s/%s: %w", u.GetNamespace(), u.GetName(), err)
	}
	if again, err := time.Parse(time.RFC3339, u.GetAnnotations()[acceptedAnnotation]); err == nil {
		r.accepted = again
	}
	r.rolledOut = u.GetAnnotations()[rolledOutAnnotation] == strconv.FormatInt(number, 10)
	if r.rolledOut {
		r.admitted = rollout.Everyone
	} else if n, count, _ := strings.Cut(u.GetAnnotations()[admittedAnnotation], "/"); n == strconv.FormatInt(number, 10) {
		admitted, _ := strconv.ParseInt(count, 10, 32)
		r.admitted = int(max(admitted, 0))
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
	if data.Format > revisionFormat {
		return data, fmt.Errorf("it has format %d, which a later version of the platform writes; the newest known one is %d",
			data.Format, revisionFormat)
	}
	if _, has := content["spec"].(map[string]any); !has || data.Blueprint == "" || data.UID == "" {
		return data, errors.New("data must have blueprint, uid and spec")
	}
	return data, nil
}

func templateKinds(resources []blueprint.Resource) (kinds []templateKind) {
	for _, r := range resources {
		gvk, isReference := kindOf(r), r.ExternalRef != nil
		i := slices.IndexFunc(kinds, func(k templateKind) bool {
			return k.GroupVersionKind == gvk && k.isReference == isReference
		})
		if i < 0 {
			kinds = append(kinds, templateKind{GroupVersionKind: gvk, isReference: isReference})
			i = len(kinds) - 1
		}
		kinds[i].setsNamespace = kinds[i].setsNamespace || setsNamespace(r)
	}
	return kinds
}

// history contains the stored revisions of all Blueprints with the same name, including deleted Blueprints with the
// deletion policy Retain.
type history []*revision

// newest returns the last accepted revision of the Blueprint with the given UID, or nil if there is none. Revisions
// of other Blueprints with the same name are never served.
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

// rollout returns the base of a rollout of the newest revision of the Blueprint with the given UID, and the older
// revisions that instances can still have: see [rollout.Revision]. The base is the most important one. It is followed
// by the revisions to which existing instances were allowed to move, those with the most instances first, and then by
// revisions that only instances that were created in the meantime can have, the newest one first.
//
// Both depend only on what the platform has stored. The statuses of instances must not affect them: one tenant could
// otherwise decide which revisions the instances of all tenants are reconciled with.
func (h history) rollout(uid types.UID) (base string, older []string) {
	newest := h.newest(uid)
	ours := slices.DeleteFunc(slices.Clone(h), func(r *revision) bool { return r.blueprintUID != uid })
	slices.SortFunc(ours, func(a, b *revision) int {
		if isNewer(a, b) {
			return -1
		}
		return 1
	})
	var found []*revision // from newest to oldest
	for _, r := range ours {
		if r != newest {
			found = append(found, r)
		}
		if r.rolledOut {
			base = r.Name
			break
		}
	}
	if n := len(found); n > 0 && base != newest.Name {
		older = append(older, found[n-1].Name)
		found = found[:n-1]
	}
	slices.SortStableFunc(found, func(a, b *revision) int { return cmp.Compare(b.admitted, a.admitted) })
	for _, r := range found {
		older = append(older, r.Name)
	}
	return base, older
}

// nextNumber returns a number that is higher than the numbers of all revisions of the Blueprint with the given UID.
func (h history) nextNumber(uid types.UID) int64 {
	next := int64(1)
	for _, r := range h {
		if r.blueprintUID == uid {
			next = max(next, r.number+1)
		}
	}
	return next
}

// beyond returns the revisions beyond the history limit, from newest to oldest. The newest revision of the Blueprint
// with the given UID is served, and does not count towards the limit. Revisions of earlier Blueprints with the same
// name are ordered last.
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
// first, so that a leader with a stale cache cannot restore an older spec.
func isNewer(a, b *revision) bool {
	return cmp.Or(
		cmp.Compare(a.generation, b.generation), cmp.Compare(a.number, b.number), strings.Compare(a.Name, b.Name),
	) > 0
}
