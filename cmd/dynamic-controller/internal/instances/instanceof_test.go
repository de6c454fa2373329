package instances

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// cachedConfigMap implements dynamiccontroller.Object.
type cachedConfigMap struct{ *corev1.ConfigMap }

func (c cachedConfigMap) Object() runtime.Object { return c.ConfigMap }

func TestInstanceOf_ReadsAnnotation(t *testing.T) {
	child := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{instanceAnnotation: "ns/one"}}}
	if got := instanceOf(t.Context(), cachedConfigMap{child}); !slices.Equal(got, []string{"ns/one"}) {
		t.Errorf("got %v", got)
	}
	child.OwnerReferences = []metav1.OwnerReference{{Name: "one"}} // as Owns maps it
	if got := instanceOf(t.Context(), cachedConfigMap{child}); got != nil {
		t.Errorf("got %v", got)
	}
}
