//go:build kind

package kind

import (
	"context"
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

	"github.com/dynamic-controller/engine/internal/testkit"
)

const (
	namespace = "dynamic-controller-system"
	lease     = "dynamic-controller"
	selector  = "app.kubernetes.io/name=dynamic-controller"
)

// The defaults of the platform's leader election, and limits for tests.
const (
	leaseDuration = 15 * time.Second
	retryPeriod   = 2 * time.Second
	// takeover is the documented maximum time from the failure of the leader until another replica leads.
	takeover = leaseDuration + 44*retryPeriod/10
	// slack is the additional time that operations can take on a busy machine.
	slack   = 5 * time.Second
	timeout = 3 * time.Minute
)

// env provides clients for the cluster that make test-kind creates.
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
	e.eventually(timeout, "both replicas are ready", func(ctx context.Context) error {
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
			return fmt.Errorf("%d of %d Pods are ready", ready, len(pods.Items))
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

// eventually polls until check returns nil, and returns how long this took. After the timeout, it fails the test.
func (e *env) eventually(within time.Duration, condition string, check func(context.Context) error) time.Duration {
	e.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(e.Context(), within)
	defer cancel()
	if err := testkit.Poll(ctx, check); err != nil {
		e.Fatalf("%s: %v", condition, err)
	}
	return time.Since(began)
}

// leader returns the lease holder's Pod and its identity in the lease.
func (e *env) leader() (pod *corev1.Pod, identity string) {
	e.Helper()
	e.eventually(timeout, "a replica leads", func(ctx context.Context) error {
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

// otherLeader waits until the lease has a holder other than old.
func (e *env) otherLeader(within time.Duration, old string) (identity string, took time.Duration) {
	e.Helper()
	took = e.eventually(within, "another replica leads", func(ctx context.Context) error {
		now, err := e.kube.CoordinationV1().Leases(namespace).Get(ctx, lease, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if identity = holder(now); identity == "" || identity == old {
			return fmt.Errorf("the lease holder is %q", identity)
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

// podOf returns the name of the Pod in an identity. An identity consists of the name, "_" and a suffix that is unique
// for each process.
func podOf(identity string) string {
	pod, _, _ := strings.Cut(identity, "_")
	return pod
}

// inNodeOf runs a shell script on the Pod's node. In the script, $pid is the process ID of the Pod's container.
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
