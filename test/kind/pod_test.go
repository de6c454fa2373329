//go:build kind

package kind

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The leader's Pod is deleted, so the kubelet sends SIGTERM.
func TestDeletedLeaderReleasesTheLease(t *testing.T) {
	e := newEnv(t)
	pod, identity := e.leader()
	e.hasIdentityFromDownwardAPI(pod, identity)
	watch, err := e.kube.CoreV1().Pods(namespace).Watch(t.Context(), metav1.SingleObject(metav1.ObjectMeta{
		Name: pod.Name, ResourceVersion: pod.ResourceVersion,
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	if err := e.kube.CoreV1().Pods(namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	// If the leader did not release the lease, the other replicas would wait until it expired.
	_, took := e.otherLeader(leaseDuration-slack, identity)
	t.Logf("another replica leads %s after the Pod of leader %s on %s was deleted", took, identity, pod.Spec.NodeName)

	var last *corev1.ContainerStateTerminated
	for event := range watch.ResultChan() {
		now, isPod := event.Object.(*corev1.Pod)
		if !isPod {
			t.Fatalf("watch: %v", event.Object)
		}
		for _, status := range now.Status.ContainerStatuses {
			if status.State.Terminated != nil {
				last = status.State.Terminated
			}
		}
		if event.Type == "DELETED" {
			break
		}
	}
	if last == nil || last.ExitCode != 0 {
		t.Fatalf("got termination state %+v, want exit code 0", last)
	}
	t.Logf("the container exited with code %d, reason %s; the Pod was removed after %s, with a grace period of %d s",
		last.ExitCode, last.Reason, time.Since(began), *pod.Spec.TerminationGracePeriodSeconds)
}

// hasIdentityFromDownwardAPI checks the lease and the environment of the leader's process. Checking only the lease is
// not sufficient, because the identity defaults to the host name, which is also the name of the Pod.
func (e *env) hasIdentityFromDownwardAPI(pod *corev1.Pod, identity string) {
	e.Helper()
	environment := strings.Split(e.inNodeOf(pod, `tr '\0' '\n' </proc/$pid/environ`), "\n")
	for _, variable := range []string{"POD_NAME=" + pod.Name, "POD_NAMESPACE=" + pod.Namespace} {
		if !slices.Contains(environment, variable) {
			e.Errorf("the environment of the leader does not contain %s: %q", variable, environment)
		}
	}
	if !strings.HasPrefix(identity, pod.Name+"_") {
		e.Errorf("got lease holder %q, want prefix %q", identity, pod.Name+"_")
	}
	e.Logf("the lease holder is %s, and the downward API provided the name %s", identity, pod.Name)
}

// The test fills the leader's memory cgroup from within its node. The OOM score ensures that the kernel kills the
// leader and not another process in the cgroup.
func TestOOMKill_ReplicaRecovers(t *testing.T) {
	e := newEnv(t)
	pod, identity := e.leader()
	restarts := pod.Status.ContainerStatuses[0].RestartCount
	container := strings.TrimPrefix(pod.Status.ContainerStatuses[0].ContainerID, "containerd://")
	const fill = `
		pid=$(crictl inspect --output go-template --template "{{.info.pid}}" "$1")
		echo 1000 >/proc/$pid/oom_score_adj
		group=/sys/fs/cgroup/memory$(sed -n 's/^[0-9]*:memory://p' /proc/$pid/cgroup)
		[ -e "$group/cgroup.procs" ] || group=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/$pid/cgroup)
		echo $$ >"$group/cgroup.procs"
		timeout 60 tail /dev/zero & hog=$!
		while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done
		kill "$hog" 2>/dev/null || true`
	began := time.Now()
	out := e.run("docker", "exec", pod.Spec.NodeName, "sh", "-uc", fill+"\n: ", "fill", container)
	t.Logf("filled the memory of %s up to its limit of %s: %s",
		identity, pod.Spec.Containers[0].Resources.Limits.Memory(), out)

	e.eventually(timeout, "the container was killed and is running again", func(ctx context.Context) error {
		now, err := e.kube.CoreV1().Pods(namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		status := now.Status.ContainerStatuses[0]
		killed := status.LastTerminationState.Terminated
		if status.RestartCount <= restarts || killed == nil || !isReady(now) {
			return fmt.Errorf("%d restarts, last state %+v", status.RestartCount, killed)
		}
		const sigkilled = 128 + 9
		if killed.ExitCode != sigkilled {
			t.Fatalf("got termination state %+v, want exit code %d", killed, sigkilled)
		}
		t.Logf("the container exited with code %d, reason %s, and is ready again after %s",
			killed.ExitCode, killed.Reason, time.Since(began))
		return nil
	})
	next, _ := e.otherLeader(leaseDuration+2*retryPeriod+slack, identity)
	t.Logf("%s leads %s after the kill", next, time.Since(began))
}
