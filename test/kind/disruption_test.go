//go:build kind

package kind

import (
	"context"
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Both replicas are evicted, as when two nodes are drained at the same time. The PodDisruptionBudget must allow only
// one eviction at a time.
func TestEviction_OneReplicaAtATime(t *testing.T) {
	e := newEnv(t)
	pods, err := e.kube.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		t.Fatal(err)
	}
	evict := func(ctx context.Context, pod string) error {
		return e.kube.PolicyV1().Evictions(namespace).Evict(ctx,
			&policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: namespace}})
	}
	first, second := pods.Items[0].Name, pods.Items[1].Name
	// The disruption controller may not have processed the Pod changes from the previous test yet.
	e.eventually(timeout, "the first replica is evicted", func(ctx context.Context) error {
		return evict(ctx, first)
	})
	if err := evict(t.Context(), second); !apierrors.IsTooManyRequests(err) {
		t.Fatalf("evict the second replica: got %v, want TooManyRequests", err)
	}
	took := e.eventually(timeout, "the second replica is evicted", func(ctx context.Context) error {
		return evict(ctx, second)
	})
	t.Logf("the second replica was evicted %s after the first", took)
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
		t.Error("no other replica was ready when the second one was evicted")
	}
}
