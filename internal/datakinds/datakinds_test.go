package datakinds

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestContains(t *testing.T) {
	for kind, want := range map[schema.GroupKind]bool{
		{Kind: "PersistentVolumeClaim"}:                            true,
		{Kind: "ConfigMap"}:                                        false,
		{Group: "example.com", Kind: "PersistentVolumeClaim"}:      false,
		{Group: "snapshot.storage.k8s.io", Kind: "VolumeSnapshot"}: true,
	} {
		if got := Contains(kind); got != want {
			t.Errorf("%s: got %t", kind, got)
		}
	}
}
