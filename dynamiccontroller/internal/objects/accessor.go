package objects

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
)

// The getters below decode the metadata. Callers that need several fields should call ObjectMeta once.

// GetOwnerReferences returns the owner references.
func (r *Record) GetOwnerReferences() []metav1.OwnerReference { return r.OwnerReferences() }

// GetGenerateName returns the generateName.
func (r *Record) GetGenerateName() string { return r.ObjectMeta().GenerateName }

// GetGeneration returns the generation.
func (r *Record) GetGeneration() int64 { return r.ObjectMeta().Generation }

// GetSelfLink returns the selfLink.
func (r *Record) GetSelfLink() string {
	return r.ObjectMeta().SelfLink //nolint:staticcheck // metav1.Object requires it
}

// GetCreationTimestamp returns the creationTimestamp.
func (r *Record) GetCreationTimestamp() metav1.Time { return r.ObjectMeta().CreationTimestamp }

// GetDeletionTimestamp returns the deletionTimestamp.
func (r *Record) GetDeletionTimestamp() *metav1.Time { return r.ObjectMeta().DeletionTimestamp }

// GetDeletionGracePeriodSeconds returns the deletionGracePeriodSeconds.
func (r *Record) GetDeletionGracePeriodSeconds() *int64 {
	return r.ObjectMeta().DeletionGracePeriodSeconds
}

// GetAnnotations returns the annotations.
func (r *Record) GetAnnotations() map[string]string { return r.ObjectMeta().Annotations }

// GetFinalizers returns the finalizers.
func (r *Record) GetFinalizers() []string { return r.ObjectMeta().Finalizers }

// GetManagedFields returns the managedFields, which only records with the projection Complete have.
func (r *Record) GetManagedFields() []metav1.ManagedFieldsEntry {
	var m struct {
		ManagedFields []metav1.ManagedFieldsEntry `json:"managedFields"`
	}
	if r.projection < Complete || r.metadata == 0 || json.Unmarshal([]byte(r.rawAt(r.metadata)), &m) != nil {
		return nil
	}
	return m.ManagedFields
}

func readOnly() { panic("objects: a Record is read-only; call Decode and change the decoded object") }

// SetNamespace panics, as do all other setters.
func (r *Record) SetNamespace(string) { readOnly() }

// SetName panics.
func (r *Record) SetName(string) { readOnly() }

// SetGenerateName panics.
func (r *Record) SetGenerateName(string) { readOnly() }

// SetUID panics.
func (r *Record) SetUID(types.UID) { readOnly() }

// SetResourceVersion panics.
func (r *Record) SetResourceVersion(string) { readOnly() }

// SetGeneration panics.
func (r *Record) SetGeneration(int64) { readOnly() }

// SetSelfLink panics.
func (r *Record) SetSelfLink(string) { readOnly() }

// SetCreationTimestamp panics.
func (r *Record) SetCreationTimestamp(metav1.Time) { readOnly() }

// SetDeletionTimestamp panics.
func (r *Record) SetDeletionTimestamp(*metav1.Time) { readOnly() }

// SetDeletionGracePeriodSeconds panics.
func (r *Record) SetDeletionGracePeriodSeconds(*int64) { readOnly() }

// SetLabels panics.
func (r *Record) SetLabels(map[string]string) { readOnly() }

// SetAnnotations panics.
func (r *Record) SetAnnotations(map[string]string) { readOnly() }

// SetFinalizers panics.
func (r *Record) SetFinalizers([]string) { readOnly() }

// SetOwnerReferences panics.
func (r *Record) SetOwnerReferences([]metav1.OwnerReference) { readOnly() }

// SetManagedFields panics.
func (r *Record) SetManagedFields([]metav1.ManagedFieldsEntry) { readOnly() }
