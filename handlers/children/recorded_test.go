package children

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestRecordedKinds(t *testing.T) {
	parent := &metav1.ObjectMeta{Annotations: map[string]string{
		"platform.example.com/inventory": "Widget.example.com=v1/widgets:2@far@near,ConfigMap,Not=/valid:0",
		"other.example.com/inventory":    "Secret=v1/secrets:0",
	}}
	want := []RecordedKind{
		{
			GroupKind:  schema.GroupKind{Group: "example.com", Kind: "Widget"},
			GVR:        schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"},
			Namespaces: []string{"far", "near"},
		},
	}
	if diff := cmp.Diff(want, RecordedKinds(parent, "platform.example.com")); diff != "" {
		t.Error(diff)
	}
	if got := RecordedKinds(&metav1.ObjectMeta{}, "platform.example.com"); got != nil {
		t.Errorf("without an inventory: got %v", got)
	}
}
