//go:build kind

package kind

import (
	"context"
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestOneReplicaIsEvictedAtATime evicts both replicas, as draining two nodes at once does.
func TestOneReplicaIsEvictedAtATime(t *testing.T) {
	e := newEnv(t)
	pods, err := e.kube.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		t.Fatal(err)
	}
	evict := func(ctx context.Context, pod string) error {
		return e.kube.PolicyV1().Evictions(namespace).Evict(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: namespace}})
	}
	first, second := pods.Items[0].Name, pods.Items[1].Name
	// The disruption controller may not have counted the last test's Pods yet.
	e.eventually(patience, "the first replica is evicted", func(ctx context.Context) error { return evict(ctx, first) })
	if err := evict(t.Context(), second); !apierrors.IsTooManyRequests(err) {
		t.Fatalf("evicting the second replica: %v", err)
	}
	took := e.eventually(patience, "the second replica is evicted", func(ctx context.Context) error { return evict(ctx, second) })
	t.Logf("the second replica could be evicted %s after the first", took)
	now, err := e.kube.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		t.Fatal(err)
	}
	ready := 0
	for _, pod := range now.Items {
		if pod.Name != second && isReady(&pod) {
			ready++
		}
	}
	if ready == 0 {
		t.Error("no other replica is ready while the second is evicted")
	}
}
