//go:build kind

package kind

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	namespace = "dynamic-controller-system"
	lease     = "dynamic-controller"
	selector  = "app.kubernetes.io/name=dynamic-controller"
)

// The defaults of the platform's election, and what it may take on a busy machine beyond them.
const (
	leaseDuration = 15 * time.Second
	retryPeriod   = 2 * time.Second
	// takeover is the documented limit after which another replica leads if the leader is gone.
	takeover = leaseDuration + 44*retryPeriod/10
	slack    = 5 * time.Second
	patience = 3 * time.Minute
)

// env is the cluster of make test-kind.
type env struct {
	*testing.T
	kube    kubernetes.Interface
	dynamic dynamic.Interface
}

func newEnv(t *testing.T) *env {
	t.Helper()
	if os.Getenv("KIND_NETWORK") == "" {
		t.Fatal("KIND_NETWORK is not set: run make test-kind")
	}
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	e := &env{t, kube, objects}
	e.eventually(patience, "both replicas are ready", func(ctx context.Context) error {
		pods, err := kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return err
		}
		ready := 0
		for _, pod := range pods.Items {
			if isReady(&pod) && pod.DeletionTimestamp == nil {
				ready++
			}
		}
		if ready != 2 || len(pods.Items) != 2 {
			return fmt.Errorf("%d of %d are", ready, len(pods.Items))
		}
		return nil
	})
	return e
}

func isReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// eventually returns how long it took until check returned nil.
func (e *env) eventually(within time.Duration, what string, check func(context.Context) error) time.Duration {
	e.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(e.Context(), within)
	defer cancel()
	last := errors.New("not checked")
	for {
		err := check(ctx)
		if err == nil {
			return time.Since(began)
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			e.Fatalf("not within %s: %s: %v", within, what, last)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// leader returns the Pod that the lease names, and its identity.
func (e *env) leader() (pod *corev1.Pod, identity string) {
	e.Helper()
	e.eventually(patience, "a replica leads", func(ctx context.Context) error {
		now, err := e.kube.CoordinationV1().Leases(namespace).Get(ctx, lease, metav1.GetOptions{})
		if err != nil {
			return err
		}
		identity = holder(now)
		pod, err = e.kube.CoreV1().Pods(namespace).Get(ctx, podOf(identity), metav1.GetOptions{})
		return err
	})
	return pod, identity
}

// otherLeader waits until the lease names another identity.
func (e *env) otherLeader(within time.Duration, old string) (identity string, took time.Duration) {
	e.Helper()
	took = e.eventually(within, "another replica leads", func(ctx context.Context) error {
		now, err := e.kube.CoordinationV1().Leases(namespace).Get(ctx, lease, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if identity = holder(now); identity == "" || identity == old {
			return fmt.Errorf("the lease names %q", identity)
		}
		return nil
	})
	return identity, took
}

func holder(l *coordinationv1.Lease) string {
	if l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}

// podOf returns the name of the Pod in an identity, which ends in "_" and what identifies the process.
func podOf(identity string) string {
	pod, _, _ := strings.Cut(identity, "_")
	return pod
}

// inNodeOf runs a shell script in the node of the Pod. The script can use $pid, the process of the Pod's container.
func (e *env) inNodeOf(pod *corev1.Pod, script string) string {
	e.Helper()
	const find = `pid=$(crictl inspect --output go-template --template "{{.info.pid}}" "$1")`
	container := strings.TrimPrefix(pod.Status.ContainerStatuses[0].ContainerID, "containerd://")
	return e.run("docker", "exec", pod.Spec.NodeName, "sh", "-euc", find+"\n"+script, "sh", container)
}

// run runs a command and returns its output.
func (e *env) run(command ...string) string {
	e.Helper()
	out, err := runCommand(e.Context(), command...)
	if err != nil {
		e.Fatalf("%s: %v: %s", strings.Join(command, " "), err, out)
	}
	return out
}

func runCommand(ctx context.Context, command ...string) (string, error) {
	out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}
