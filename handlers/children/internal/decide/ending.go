package decide

import (
	"cmp"
	"errors"
	"net/http"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/handlers/internal/ownerref"
)

// UnservedPeriod is the time for which the deletion of a parent waits for a type that the mapper contains but the API
// server does not serve. The types of one replica of the API server can lag behind those of another.
const UnservedPeriod = 10 * time.Second

// ErrMisrouted is returned instead of a list that the API server would reject with an internal error.
var ErrMisrouted = errors.New("the API server does not support lists across namespaces for a resource with this name")

// Key identifies a child regardless of its API version.
type Key struct {
	Kind schema.GroupKind
	Name string // namespace/name, or name if the object is cluster-scoped
}

// Doomed is a child that must be deleted.
type Doomed struct {
	Key
	Resource schema.GroupVersionResource
	Stage    int
	Object   *unstructured.Unstructured
	// Deleting is set if the deletion has been requested.
	Deleting bool
}

// compareDoomed orders children by descending stage. Within a stage, the order must be deterministic because it
// determines the text of errors. If a status contained a different text each time, every reconcile would trigger the
// next one.
func compareDoomed(a, b Doomed) int {
	return cmp.Or(cmp.Compare(b.Stage, a.Stage), cmp.Compare(a.Kind.String(), b.Kind.String()),
		cmp.Compare(a.Name, b.Name))
}

// Ending decides in which order children are deleted. Each question is the child that is deleted next, and the answer
// is the error of its deletion. The children of the last stage are deleted, and all others remain: once they are gone,
// a later Ending deletes those in the stage before it. A child that the identity cannot delete does not delay earlier
// stages, because it may be forged. While the parent is being deleted, such a child delays them, unless it is in the
// first stage and Kubernetes deletes it too.
type Ending struct {
	*conversation[Doomed, Deleting]
	// Remaining lists the children that still exist, in the order in which they are deleted.
	Remaining []Doomed
	// Unsupported lists the children that are left behind, because the API server does not support their deletion.
	Unsupported []Doomed
	// IsPostponed is set if a later Ending must delete further children.
	IsPostponed bool
}

// Deleting is the result of a deletion.
type Deleting struct {
	Err error
	// Unanswered is set if the API server has not responded, so that the request can succeed later.
	Unanswered bool
	At         time.Time
}

// BeginEnding begins to delete children. It must be stopped.
func BeginEnding(parent *Parent, doomed []Doomed) *Ending {
	e := &Ending{}
	doomed = slices.Clone(doomed)
	slices.SortFunc(doomed, compareDoomed)
	e.conversation = converse(Deleting{Err: errStopped}, func(ask func(Doomed) Deleting) {
		last := 0
		for _, child := range doomed {
			if child.Stage < last {
				e.IsPostponed = true
			} else if !child.Deleting || IsDeletionStuck(child.Object) {
				answer := ask(child)
				switch {
				case parent.IsUnsupported(answer.Err, answer.At) && parent.GetDeletionTimestamp() != nil:
					e.Unsupported = append(e.Unsupported, child)
					continue
				case parent.isLeftToKubernetes(child, answer),
					apierrors.IsForbidden(answer.Err) && parent.GetDeletionTimestamp() == nil:
					continue
				}
				child.Deleting = true
			}
			last = max(last, child.Stage)
			e.Remaining = append(e.Remaining, child)
		}
	})
	return e
}

// IsUnsupported reports whether the request that returned err will not succeed later, because the API server does not
// support it. A type that is not served can be served again. For such a type, IsUnsupported returns true only if the
// parent is being deleted and UnservedPeriod has passed.
func (p *Parent) IsUnsupported(err error, now time.Time) bool {
	if apierrors.IsMethodNotSupported(err) || errors.Is(err, ErrMisrouted) {
		return true
	}
	deleted := p.GetDeletionTimestamp()
	return (apierrors.IsNotFound(err) || meta.IsNoMatchError(err)) && deleted != nil &&
		now.Sub(deleted.Time) > UnservedPeriod
}

// IsAlsoDeletedByKubernetes reports whether Kubernetes deletes a child together with the parent, and at the right time.
func (p *Parent) IsAlsoDeletedByKubernetes(child Doomed) bool {
	return child.Stage == 0 && ownerref.CanReach(p, child.Object.GetNamespace())
}

// isLeftToKubernetes reports whether the deletion of the parent continues although the deletion of a child, which
// Kubernetes deletes too, has failed. Temporary errors are retried.
func (p *Parent) isLeftToKubernetes(child Doomed, answer Deleting) bool {
	return answer.Err != nil && p.GetDeletionTimestamp() != nil && p.IsAlsoDeletedByKubernetes(child) &&
		!answer.Unanswered && !isTemporary(answer.Err)
}

// IsExpected reports whether the deletion of the parent continues although a deletion has failed, so that the error is
// not one of the call.
func (p *Parent) IsExpected(child Doomed, answer Deleting) bool {
	return p.GetDeletionTimestamp() != nil && p.IsUnsupported(answer.Err, answer.At) ||
		p.isLeftToKubernetes(child, answer)
}

// isTemporary reports whether a request can succeed later without a change of permissions. An identity can have errors
// of its own, which do not come from the API server.
func isTemporary(err error) bool {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		code := status.Status().Code
		return code >= http.StatusInternalServerError || slices.Contains([]int32{
			http.StatusUnauthorized, http.StatusNotFound, http.StatusRequestTimeout, http.StatusConflict,
			http.StatusTooManyRequests,
		}, code)
	}
	return false
}
