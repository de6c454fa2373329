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

// probe sends the request of a probe through the API server. Its timeout is longer than the kubelet's, one second.
func (e *env) probe(ctx context.Context, pod, path string) (string, error) {
	const port, timeout = "8081", 2 * time.Second
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	body, err := e.kube.CoreV1().Pods(namespace).ProxyGet("http", pod, port, path, nil).DoRaw(ctx)
	return strings.TrimSpace(string(body)), err
}

// answersProbes waits until all probes succeed. A connection of the API server to a previous container may fail once.
func (e *env) answersProbes(pod string) {
	e.Helper()
	e.eventually(patience, "the probes of "+pod+" succeed", func(ctx context.Context) error {
		for _, path := range probePaths {
			if body, err := e.probe(ctx, pod, path); err != nil || body != "ok" {
				return fmt.Errorf("/%s: %q, %v", path, body, err)
			}
		}
		return nil
	})
}

// detects returns the time within which a kubelet notices that a container has stopped answering a probe. The last success
// can be just before that, and the last of the failures takes its timeout. A container that has just been started is
// probed only after the initial delay.
func detects(p *corev1.Probe) time.Duration {
	return time.Duration(p.InitialDelaySeconds+p.FailureThreshold*p.PeriodSeconds+p.TimeoutSeconds) * time.Second
}

// TestStoppedLeaderIsReplaced stops the leader's process with SIGSTOP. A stopped process does not handle SIGTERM, so the
// kubelet has to wait for the grace period before it sends SIGKILL.
func TestStoppedLeaderIsReplaced(t *testing.T) {
	e := newEnv(t)
	pod, identity := e.leader()
	before := pod.Status.ContainerStatuses[0]
	readiness, liveness := pod.Spec.Containers[0].ReadinessProbe, pod.Spec.Containers[0].LivenessProbe
	grace := time.Duration(*pod.Spec.TerminationGracePeriodSeconds) * time.Second
	e.answersProbes(pod.Name)

	began := time.Now()
	e.inNodeOf(pod, `kill -STOP "$pid"`)
	for _, path := range probePaths {
		if body, err := e.probe(t.Context(), pod.Name, path); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("/%s of the stopped leader: %q, %v", path, body, err)
		}
	}
	t.Logf("stopped %s on %s; /readyz and /livez do not answer", identity, pod.Spec.NodeName)
	next, _ := e.otherLeader(takeover-time.Since(began), identity)
	t.Logf("%s leads %s after the stop; the documented limit is %s", next, time.Since(began), takeover)
	if podOf(next) == pod.Name {
		t.Fatalf("%s leads, in the Pod of the stopped leader", next)
	}

	unready := e.becomesUnready(pod.Name, before, began, detects(readiness)+slack)
	t.Logf("the Pod is NotReady %s after the stop, with a readiness probe every %d s", unready, readiness.PeriodSeconds)
	failed := e.isKilledForLiveness(pod, began, detects(liveness)+slack)
	t.Logf("the kubelet decides %s after the stop to replace the container, with a liveness probe every %d s",
		failed.Sub(began), liveness.PeriodSeconds)

	now, killed := e.isRestarted(pod.Name, before, grace+patience)
	ready := time.Since(began)
	const sigkilled = 128 + 9
	if killed.ExitCode != sigkilled {
		t.Errorf("the container ended with %+v", killed)
	}
	// Both times have whole seconds.
	if took := killed.FinishedAt.Sub(failed); took < grace-time.Second || took > grace+slack {
		t.Errorf("the container was killed %s after its liveness probe failed, with a grace period of %s", took, grace)
	}
	t.Logf("the container ended %s after the stop and %s after its liveness probe failed (grace period %s)",
		killed.FinishedAt.Sub(began), killed.FinishedAt.Sub(failed), grace)
	t.Logf("it ended with exit code %d, reason %s", killed.ExitCode, killed.Reason)
	t.Logf("the Pod is Ready again after %s, with %d restarts, %d before", ready, now.RestartCount, before.RestartCount)
	e.answersProbes(pod.Name)
	if _, current := e.leader(); current != next {
		t.Errorf("%s leads, and %s did before the container was restarted", current, next)
	}
}

// becomesUnready waits until the Pod is not ready while its container still runs. It returns the time from began to the
// transition that the kubelet reports, which has whole seconds.
func (e *env) becomesUnready(
	name string, before corev1.ContainerStatus, began time.Time, within time.Duration,
) (took time.Duration) {
	e.Helper()
	e.eventually(patience, "the Pod is not ready", func(ctx context.Context) error {
		pod, err := e.kube.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		status := pod.Status.ContainerStatuses[0]
		if status.ContainerID != before.ContainerID || status.State.Running == nil {
			e.Fatalf("the container was not found unready while it was stopped: %+v", status)
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionFalse {
				took = c.LastTransitionTime.Sub(began)
				return nil
			}
		}
		return errors.New("it is")
	})
	if took > within {
		e.Errorf("the Pod was not ready only after %s, more than %s", took, within)
	}
	return took
}

// isKilledForLiveness waits for the kubelet's event and returns its time, which has whole seconds.
func (e *env) isKilledForLiveness(pod *corev1.Pod, began time.Time, within time.Duration) (failed time.Time) {
	e.Helper()
	of := fields.Set{"involvedObject.uid": string(pod.UID), "reason": "Killing"}.String()
	e.eventually(patience, "the kubelet replaces the container", func(ctx context.Context) error {
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
		return fmt.Errorf("none of %d events names the liveness probe", len(events.Items))
	})
	if took := failed.Sub(began); took > within {
		e.Errorf("the liveness probe failed only after %s, more than %s", took, within)
	}
	return failed
}

// isRestarted waits until the container was restarted once and is ready, and returns how the previous container ended.
func (e *env) isRestarted(
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
			return fmt.Errorf("%d restarts, state %+v", now.RestartCount, now.State)
		}
		killed = *last
		return nil
	})
	if now.RestartCount != before.RestartCount+1 || killed.ContainerID != before.ContainerID {
		e.Errorf("%d restarts, %d before, the last of %s", now.RestartCount, before.RestartCount, killed.ContainerID)
	}
	return now, killed
}
