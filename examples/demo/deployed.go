package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// podSelector finds the Pods of install/kustomize/deployment.yaml.
const podSelector = "app.kubernetes.io/name=dynamic-controller"

// deployed is a platform that runs as Pods of an existing Deployment.
type deployed struct {
	kube      kubernetes.Interface
	namespace string
	// killer is the command that kills a Pod with SIGKILL, which is not possible through the API server. Its arguments
	// are the namespace and the name of the Pod.
	killer string
	byName map[string]*logFile

	following sync.WaitGroup
	unfollow  context.CancelFunc
}

// findDeployed returns the platform with the Pods that are ready.
func findDeployed(ctx context.Context, kube kubernetes.Interface, namespace, killer string) (*deployed, error) {
	d := &deployed{kube: kube, namespace: namespace, killer: killer, byName: map[string]*logFile{}}
	pods, err := kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: podSelector})
	if err != nil {
		return nil, fmt.Errorf("list the Pods of the platform: %w", err)
	}
	for _, pod := range pods.Items {
		if isReady(&pod) && pod.DeletionTimestamp == nil {
			d.byName[pod.Name] = &logFile{}
		}
	}
	if len(d.byName) < replicas {
		return nil, fmt.Errorf("%d Pods with %s are ready in namespace %s, want at least %d",
			len(d.byName), podSelector, namespace, replicas)
	}
	// The streams end only in stop, because log lines that are written after ctx is cancelled can show why ctx was
	// cancelled.
	following, unfollow := context.WithCancel(context.WithoutCancel(ctx))
	d.unfollow = unfollow
	for name, log := range d.byName {
		d.following.Go(func() { d.follow(following, name, log) })
	}
	return d, nil
}

func isReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// follow reads the log of a Pod until ctx is cancelled. If the Pod's container is restarted, follow continues with the
// log of the new one.
func (d *deployed) follow(ctx context.Context, pod string, log *logFile) {
	const pause = 500 * time.Millisecond
	for from := metav1.Now(); ctx.Err() == nil; {
		options := &corev1.PodLogOptions{Follow: true, SinceTime: &from}
		stream, err := d.kube.CoreV1().Pods(d.namespace).GetLogs(pod, options).Stream(ctx)
		if err == nil {
			_, _ = io.Copy(log, stream) // returns when the container exits
			_ = stream.Close()
		}
		from = metav1.Now()
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

func (d *deployed) logs() map[string]*logFile { return d.byName }

func (d *deployed) kill(ctx context.Context, replica string) error {
	out, err := exec.CommandContext(ctx, d.killer, d.namespace, replica).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s %s: %w: %s", d.killer, d.namespace, replica, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// revive waits until the kubelet has started the container again.
func (d *deployed) revive(ctx context.Context, replica string) error {
	return waitFor(ctx, condition{"the Pod " + replica + " is ready again", func(ctx context.Context) error {
		pod, err := d.kube.CoreV1().Pods(d.namespace).Get(ctx, replica, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range pod.Status.ContainerStatuses {
			if c.RestartCount > 0 && isReady(pod) {
				return nil
			}
		}
		return errors.New("the Pod is not ready")
	}})
}

// stop does not stop the Pods, because the demonstration did not start them.
func (d *deployed) stop(printf) error {
	d.unfollow()
	d.following.Wait()
	return nil
}
