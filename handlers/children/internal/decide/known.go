package decide

import (
	"slices"
	"time"

	"golang.org/x/time/rate"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// MaxLag is how long a cache is assumed to lack a write. Afterwards, an object with an older version is the current
// one: etcd may have been restored from a backup, and its versions may have overtaken those from before the restore.
const MaxLag = 30 * time.Second

// Version identifies a state of an object that was written.
type Version struct {
	UID             types.UID
	ResourceVersion string
	Written         time.Time
}

// VersionOf returns the version of an object that was written at the given time.
func VersionOf(object metav1.Object, at time.Time) Version {
	return Version{UID: object.GetUID(), ResourceVersion: object.GetResourceVersion(), Written: at}
}

// IsNewerThan compares the versions of objects with the same name. It returns false if they cannot be compared.
func (v Version) IsNewerThan(object metav1.Object) bool {
	order, err := resourceversion.CompareResourceVersion(v.ResourceVersion, object.GetResourceVersion())
	return err == nil && order > 0
}

// IsAfter reports whether v is a later version of the same object, which the cache may lack. It returns false if the
// versions cannot be compared.
func (v Version) IsAfter(object metav1.Object, now time.Time) bool {
	return v.UID == object.GetUID() && now.Sub(v.Written) <= MaxLag && v.IsNewerThan(object)
}

// Known is what a run knows about a child. The zero value knows nothing. It is used by one Decision at a time, which
// changes it.
type Known struct {
	// exists is set if the run has applied the child, or has failed to create it.
	exists  bool
	applied lastApply
	kept    othersPaths // items that can be edited items of the child, and stay
	earlier othersPaths // fields that other managers had set before the object was adopted or restored
	// futile is the hash of a desired child that the API server refuses even with repaired managedFields.
	futile     string
	fights     fights     // limits what other clients undo
	recreation recreation // of a child with Recreate
	judgement  judgement  // of a child that the API server could not apply
}

// MustExist reports whether the run has applied the child, or has failed to create it: if a cache lacks the child, the
// cache lags behind, or the existing object is not a child.
func (k *Known) MustExist() bool { return k.exists }

// Deleted forgets the object that had the name of the child, because this run deletes it.
func (k *Known) Deleted() {
	k.reset()
	k.fights.exists = false
}

// reset forgets the object that had the name of the child. The limits apply to the next object, too.
func (k *Known) reset() {
	*k = Known{fights: k.fights, recreation: k.recreation, judgement: k.judgement}
}

// lastApply describes the last apply of a child.
type lastApply struct {
	hash      string  // a hash of the configuration and the identity
	written   Version // the resulting version
	signature signature
	foreign   map[string]bool // the items of others in lists with keys
	finding   Finding         // what the API server stores with another value
}

// lacksManagedFields reports whether the object was changed after the last apply and has no managedFields, although it
// had some: someone has cleared them, or a cache leaves them out. Without them, a field that leaves the child would
// stay.
func (a *lastApply) lacksManagedFields(object *unstructured.Unstructured) bool {
	return a.signature.owned != "" && a.written.UID == object.GetUID() &&
		a.written.ResourceVersion != object.GetResourceVersion() && len(managedFields(object)) == 0
}

// managedFields returns the entries as they are. Unlike GetManagedFields, it does not convert them.
func managedFields(object *unstructured.Unstructured) []any {
	fields, _, _ := unstructured.NestedFieldNoCopy(object.Object, "metadata", "managedFields")
	list, _ := fields.([]any)
	return list
}

// signature contains two digests of the fields that were applied to an object: one of their stored values, and one of
// their ownership. If the object has no managed fields, owned is empty.
type signature struct{ values, owned string }

// recreation is stored for a child whose update was refused.
type recreation struct {
	hash   string // the desired state of the last dry run
	probed time.Time
	err    error // the result of the last dry run; nil if the child can be created

	deleted time.Time // when this run deleted the child
	pending bool      // whether the child has not been created since then
}

// judgement is what dry runs have shown about a desired child that the API server could not apply.
type judgement struct {
	hash    string // of the desired child
	refuses bool   // whether its content is the cause
	made    time.Time
}

// deletesItself reports whether Kubernetes deletes the child when it has finished.
func (c *Child) deletesItself() bool {
	_, has, _ := unstructured.NestedFieldNoCopy(c.Template.Object, "spec", "ttlSecondsAfterFinished")
	return has && c.GroupKind == batchv1.SchemeGroupVersion.WithKind("Job").GroupKind()
}

// Clone returns a copy, for a decision whose operations are not performed.
func (k *Known) Clone(now time.Time) *Known {
	clone := *k
	clone.kept, clone.earlier = k.kept.clone(), k.earlier.clone()
	clone.fights = k.fights.clone(now)
	return &clone
}

func (o othersPaths) clone() othersPaths {
	return othersPaths{existing: slices.Clone(o.existing), undesired: slices.Clone(o.undesired)}
}

func (f fights) clone(now time.Time) fights {
	for _, limiter := range []**rate.Limiter{&f.corrected, &f.protected, &f.created} {
		if from := *limiter; from != nil {
			*limiter = rate.NewLimiter(from.Limit(), from.Burst())
			(*limiter).ReserveN(now, from.Burst()-int(from.TokensAt(now)))
		}
	}
	fields := make(map[string]*contested, len(f.contested))
	for name, field := range f.contested {
		copied := *field
		fields[name] = &copied
	}
	f.contested = fields
	return f
}
