//go:build kind

package kind

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
)

var probePaths = []string{"readyz", "livez"}

// probe sends a probe's request through the API server. The request's timeout is longer than the kubelet's, which is
// one second.
func (e *env) probe(ctx context.Context, pod, path string) (string, error) {
	const port, requestTimeout = "8081", 2 * time.Second
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	body, err := e.kube.CoreV1().Pods(namespace).ProxyGet("http", pod, port, path, nil).DoRaw(ctx)
	return strings.TrimSpace(string(body)), err
}

// awaitProbes waits until all probes succeed. A probe can fail once if the API server reuses a connection to a previous
// container.
func (e *env) awaitProbes(pod string) {
	e.Helper()
	e.eventually(timeout, "the probes of "+pod+" succeed", func(ctx context.Context) error {
		for _, path := range probePaths {
			body, err := e.probe(ctx, pod, path)
			if err != nil {
				return fmt.Errorf("/%s: %q: %w", path, body, err)
			}
			if body != "ok" {
				return fmt.Errorf("/%s: got %q, want ok", path, body)
			}
		}
		return nil
	})
}

// detectionTime returns the maximum time until a kubelet detects that a container no longer responds to a probe. The
// last success can occur immediately before the container stops responding, and the last failure takes as long as the
// timeout. A container that has just been started is probed only after the initial delay.
func detectionTime(p *corev1.Probe) time.Duration {
	return time.Duration(p.InitialDelaySeconds+p.FailureThreshold*p.PeriodSeconds+p.TimeoutSeconds) * time.Second
}

// The leader's process is stopped with SIGSTOP. A stopped process does not handle SIGTERM, so the kubelet has to wait
// for the grace period before it sends SIGKILL.
func TestProbes_StoppedLeaderIsReplaced(t *testing.T) {
	e := newEnv(t)
	pod, identity := e.leader()
	before := pod.Status.ContainerStatuses[0]
	readiness, liveness := pod.Spec.Containers[0].ReadinessProbe, pod.Spec.Containers[0].LivenessProbe
	grace := time.Duration(*pod.Spec.TerminationGracePeriodSeconds) * time.Second
	e.awaitProbes(pod.Name)

	began := time.Now()
	e.inNodeOf(pod, `kill -STOP "$pid"`)
	for _, path := range probePaths {
		if body, err := e.probe(t.Context(), pod.Name, path); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("GET /%s of the stopped leader: got %q, %v, want a timeout", path, body, err)
		}
	}
	t.Logf("stopped %s on %s; /readyz and /livez do not respond", identity, pod.Spec.NodeName)
	next, _ := e.otherLeader(takeover-time.Since(began), identity)
	t.Logf("%s leads %s after the stop; the documented limit is %s", next, time.Since(began), takeover)
	if podOf(next) == pod.Name {
		t.Fatalf("the new leader %s runs in the Pod of the stopped leader", next)
	}

	unready := e.awaitUnready(pod.Name, before, began, detectionTime(readiness)+slack)
	t.Logf("the Pod is NotReady %s after the stop, with a readiness probe every %d s", unready, readiness.PeriodSeconds)
	failed := e.awaitLivenessFailure(pod, began, detectionTime(liveness)+slack)
	t.Logf("the kubelet started to replace the container %s after the stop, with a liveness probe every %d s",
		failed.Sub(began), liveness.PeriodSeconds)

	now, killed := e.awaitRestart(pod.Name, before, grace+timeout)
	ready := time.Since(began)
	const sigkilled = 128 + 9
	if killed.ExitCode != sigkilled {
		t.Errorf("got termination state %+v, want exit code %d", killed, sigkilled)
	}
	// Kubernetes reports both times in whole seconds.
	if took := killed.FinishedAt.Sub(failed); took < grace-time.Second || took > grace+slack {
		t.Errorf("the container was killed %s after its liveness probe failed, with a grace period of %s", took, grace)
	}
	t.Logf("the container exited %s after the stop and %s after its liveness probe failed (grace period %s)",
		killed.FinishedAt.Sub(began), killed.FinishedAt.Sub(failed), grace)
	t.Logf("it exited with code %d, reason %s", killed.ExitCode, killed.Reason)
	t.Logf("the Pod is Ready again after %s; restarts: %d, previously %d", ready, now.RestartCount, before.RestartCount)
	e.awaitProbes(pod.Name)
	if _, current := e.leader(); current != next {
		t.Errorf("the leader changed from %s to %s after the restart of the container", next, current)
	}
}

// awaitUnready waits until the Pod is no longer ready. The container must still be running. awaitUnready returns the
// time from began to the transition, which the kubelet reports in whole seconds.
func (e *env) awaitUnready(
	name string, before corev1.ContainerStatus, began time.Time, within time.Duration,
) (took time.Duration) {
	e.Helper()
	e.eventually(timeout, "the Pod is not ready", func(ctx context.Context) error {
		pod, err := e.kube.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		status := pod.Status.ContainerStatuses[0]
		if status.ContainerID != before.ContainerID || status.State.Running == nil {
			e.Fatalf("the container was replaced before the Pod became unready: %+v", status)
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionFalse {
				took = c.LastTransitionTime.Sub(began)
				return nil
			}
		}
		return errors.New("the Pod is still ready")
	})
	if took > within {
		e.Errorf("the Pod became unready after %s, want at most %s", took, within)
	}
	return took
}

// awaitLivenessFailure waits for the event in which the kubelet reports the failed liveness probe. It returns the
// event's time, which is in whole seconds.
func (e *env) awaitLivenessFailure(pod *corev1.Pod, began time.Time, within time.Duration) (failed time.Time) {
	e.Helper()
	of := fields.Set{"involvedObject.uid": string(pod.UID), "reason": "Killing"}.String()
	e.eventually(timeout, "the kubelet replaces the container", func(ctx context.Context) error {
		events, err := e.kube.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: of})
		if err != nil {
			return err
		}
		for _, event := range events.Items {
			at := event.LastTimestamp.Time
			if strings.Contains(event.Message, "failed liveness probe") && !at.Before(began.Truncate(time.Second)) {
				failed = at
				return nil
			}
		}
		return fmt.Errorf("none of %d events is about the liveness probe", len(events.Items))
	})
	if took := failed.Sub(began); took > within {
		e.Errorf("the liveness probe failed after %s, want at most %s", took, within)
	}
	return failed
}

// awaitRestart waits until the container has been restarted once and is ready. It returns the termination state of the
// previous container.
func (e *env) awaitRestart(
	name string, before corev1.ContainerStatus, within time.Duration,
) (now corev1.ContainerStatus, killed corev1.ContainerStateTerminated) {
	e.Helper()
	e.eventually(within, "the container was restarted and is ready", func(ctx context.Context) error {
		pod, err := e.kube.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		now = pod.Status.ContainerStatuses[0]
		last := now.LastTerminationState.Terminated
		if now.RestartCount == before.RestartCount || last == nil || !isReady(pod) {
			return fmt.Errorf("got %d restarts, state %+v", now.RestartCount, now.State)
		}
		killed = *last
		return nil
	})
	if now.RestartCount != before.RestartCount+1 || killed.ContainerID != before.ContainerID {
		e.Errorf("got %d restarts, previously %d; the last terminated container is %s, want %s",
			now.RestartCount, before.RestartCount, killed.ContainerID, before.ContainerID)
	}
	return now, killed
}
