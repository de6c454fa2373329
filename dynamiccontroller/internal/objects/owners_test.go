package objects

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestStore_FindsOwnersInTheSameNamespaceAndClusterScopedOwners(t *testing.T) {
	child, err := Encode(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "child",
		OwnerReferences: []metav1.OwnerReference{{Name: "owner", UID: "uid-owner"}, {Name: "owner", UID: "uid-other"}},
	}}, Metadata, "")
	if err != nil {
		t.Fatal(err)
	}
	for namespace, want := range map[string]string{"ns": "ns/owner", "": "owner", "other": ""} {
		s := NewStore(Keys)
		s.Put(owned(t, namespace, "owner", "1"))
		owners := OwnersOf(child)
		if key, known := s.FindOwner(&owners[0]); key != want || known != (want != "") {
			t.Errorf("owner in namespace %q: got %q, %v, want %q", namespace, key, known, want)
		}
		if key, known := s.FindOwner(&owners[1]); known {
			t.Errorf("owner with another UID: got %q", key)
		}
	}
}
