package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
)

// nodeTimeout is twice the termination grace period of the platform's Pods, to allow for busy machines.
const nodeTimeout = 90 * time.Second

// drainNode drains the node of the leader like kubectl drain, and makes it schedulable again.
func (d *deployed) drainNode(ctx context.Context, say printf, c *demoCluster) (err error) {
	old, err := c.leader(ctx)
	if err != nil {
		return err
	}
	pod, err := d.kube.CoreV1().Pods(d.namespace).Get(ctx, old, metav1.GetOptions{})
	if err != nil {
		return err
	}
	node := pod.Spec.NodeName
	if err := d.cordon(ctx, node, true); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.cordon(context.WithoutCancel(ctx), node, false)) }()

	began := time.Now()
	if err := d.evictAll(ctx, node); err != nil {
		return err
	}
	next, took, err := c.nextLeader(ctx, old, began)
	if err != nil {
		return err
	}
	if err := d.awaitReady(ctx); err != nil {
		return err
	}
	generation, err := c.write(ctx, "first", "Drained")
	if err != nil {
		return err
	}
	page := c.page("first", "Drained and welcome", "")
	if err := errors.Join(waitFor(ctx, c.ready("first", generation)), waitFor(ctx, page)); err != nil {
		return err
	}
	say("drained the node %s: %s released the lease and %s leads after %s", node, old, next, milliseconds(took))
	return nil
}

func (d *deployed) cordon(ctx context.Context, node string, unschedulable bool) error {
	patch := fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, unschedulable)
	_, err := d.kube.CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	return err
}

// evictAll evicts every Pod that kubectl drain would evict, and waits until all of them have left the node.
func (d *deployed) evictAll(ctx context.Context, node string) error {
	pods, err := d.kube.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(),
	})
	if err != nil {
		return err
	}
	for _, pod := range pods.Items {
		if staysOnNode(&pod) {
			continue
		}
		evicted := func(ctx context.Context) error { return d.evict(ctx, &pod) }
		if err := waitWithin(ctx, nodeTimeout, condition{"the Pod " + pod.Name + " is evicted", evicted}); err != nil {
			return err
		}
	}
	return nil
}

// staysOnNode reports whether a drain ignores the Pod, because it is a static Pod or belongs to a DaemonSet.
func staysOnNode(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	return owner != nil && (owner.Kind == "DaemonSet" || owner.Kind == "Node")
}

// evict returns nil once the Pod no longer exists. The API server can refuse the eviction temporarily because of a
// disruption budget.
func (d *deployed) evict(ctx context.Context, pod *corev1.Pod) error {
	err := d.kube.PolicyV1().Evictions(pod.Namespace).Evict(ctx, &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace},
		DeleteOptions: &metav1.DeleteOptions{
			Preconditions: metav1.NewUIDPreconditions(string(pod.UID)),
		},
	})
	switch {
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err): // deleted, or replaced by another Pod with this name
		return nil
	case err == nil:
		return errors.New("the Pod is terminating")
	default:
		return err
	}
}

// updatePods restarts the platform's Deployment, and writes WebApps while its Pods are replaced.
func (d *deployed) updatePods(ctx context.Context, say printf, c *demoCluster) error {
	old, err := c.leader(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	patch := fmt.Appendf(nil, `{"spec":{"template":{"metadata":{"annotations":{"demo.example.com/restarted-at":%q}}}}}`,
		began.Format(time.RFC3339Nano))
	deployments := d.kube.AppsV1().Deployments(d.namespace)
	updated, err := deployments.Patch(ctx, deploymentName, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return err
	}
	var longest time.Duration
	written := 0
	for done := false; !done; written++ {
		write := time.Now()
		name := numbered(written % many)
		generation, err := c.write(ctx, name, fmt.Sprintf("Update %d", written))
		if err != nil {
			return err
		}
		if err := waitWithin(ctx, nodeTimeout, c.ready(name, generation)); err != nil {
			return err
		}
		longest = max(longest, time.Since(write))
		if done, err = d.rolledOut(ctx, updated.Generation); err != nil {
			return err
		}
		if time.Since(began) > nodeTimeout {
			return fmt.Errorf("the Deployment %s was not rolled out within %s", deploymentName, nodeTimeout)
		}
	}
	took := time.Since(began)
	next, _, err := c.nextLeader(ctx, old, began)
	if err != nil {
		return err
	}
	say("replaced all Pods of the platform in %s: %s leads; "+
		"%d WebApps were changed meanwhile, each Ready after at most %s",
		milliseconds(took), next, written, milliseconds(longest))
	return nil
}

const deploymentName = "dynamic-controller"

// rolledOut reports whether all Pods have the given generation of the template and are available.
func (d *deployed) rolledOut(ctx context.Context, generation int64) (bool, error) {
	now, err := d.kube.AppsV1().Deployments(d.namespace).Get(ctx, deploymentName, metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	s := now.Status
	return s.ObservedGeneration >= generation && s.UpdatedReplicas == s.Replicas && s.AvailableReplicas == s.Replicas &&
		s.Replicas == *now.Spec.Replicas, nil
}

// awaitReady waits until all replicas of the platform are ready.
func (d *deployed) awaitReady(ctx context.Context) error {
	return waitWithin(ctx, nodeTimeout, condition{"all replicas are ready", func(ctx context.Context) error {
		if done, err := d.rolledOut(ctx, 0); err != nil || !done {
			return cmp.Or(err, errors.New("some replicas are not ready"))
		}
		return nil
	}})
}

// nextLeader waits for a leader other than old. It returns the name of the new leader and the time since began.
func (c *demoCluster) nextLeader(
	ctx context.Context, old string, began time.Time,
) (next string, took time.Duration, err error) {
	err = waitWithin(ctx, nodeTimeout, condition{"another replica leads", func(ctx context.Context) error {
		lease, err := c.lease(ctx)
		if err != nil {
			return err
		}
		if next = nameOf(holder(lease)); next == "" || next == old {
			return fmt.Errorf("the lease has the holder %q", holder(lease))
		}
		return nil
	}})
	return next, time.Since(began), err
}
