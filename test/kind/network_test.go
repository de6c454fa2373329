//go:build kind

package kind

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

const apps = 20

var webApps = schema.GroupVersionResource{Group: "demo.example.com", Version: "v1", Resource: "webapps"}

func appName(i int) string { return fmt.Sprintf("app-%d", i) }

// serveWebApps applies the demo's Blueprint and creates instances of the type that it defines.
func (e *env) serveWebApps() {
	e.Helper()
	e.run("kubectl", "apply", "--filename", "../../examples/demo/webapps.yaml")
	e.Cleanup(func() { e.deleteWebApps() })
	e.run("kubectl", "wait", "--for=condition=Serving", "blueprint/webapps", "--timeout", "1m")
	for i := range apps {
		app := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": webApps.GroupVersion().String(), "kind": "WebApp",
			"metadata": map[string]any{"name": appName(i)},
			"spec":     map[string]any{"greeting": "Before"},
		}}
		client := e.dynamic.Resource(webApps).Namespace(metav1.NamespaceDefault)
		if _, err := client.Create(e.Context(), app, metav1.CreateOptions{}); err != nil {
			e.Fatal(err)
		}
	}
	e.pages("Before", timeout)
}

func (e *env) deleteWebApps() {
	ctx := context.WithoutCancel(e.Context())
	if out, err := runCommand(ctx, "kubectl", "delete", "blueprint/webapps", "--timeout", "2m"); err != nil {
		e.Errorf("%v: %s", err, out)
	}
}

func (e *env) greet(greeting string) {
	e.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"greeting":%q}}`, greeting)
	for i := range apps {
		if _, err := e.dynamic.Resource(webApps).Namespace(metav1.NamespaceDefault).Patch(
			e.Context(), appName(i), types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			e.Fatal(err)
		}
	}
}

func greetingOf(page *corev1.ConfigMap) string {
	var greeting string
	_, _ = fmt.Sscanf(page.Data["index.html"], "%s", &greeting)
	return greeting
}

// pages waits until the page of every WebApp contains the greeting, and returns how long this took.
func (e *env) pages(greeting string, within time.Duration) time.Duration {
	e.Helper()
	return e.eventually(within, "all pages contain "+greeting, func(ctx context.Context) error {
		for i := range apps {
			page, err := e.kube.CoreV1().ConfigMaps(metav1.NamespaceDefault).Get(ctx, appName(i)+"-page", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if got := greetingOf(page); got != greeting+"," {
				return fmt.Errorf("the page of %s contains %s", appName(i), got)
			}
		}
		return nil
	})
}

// pageWrites counts the Modified events that a watch delivers for each page.
type pageWrites struct {
	mu     sync.Mutex
	writes map[string]int // By page and greeting.
}

func (e *env) countPageWrites() *pageWrites {
	e.Helper()
	list, err := e.kube.CoreV1().ConfigMaps(metav1.NamespaceDefault).List(e.Context(), metav1.ListOptions{})
	if err != nil {
		e.Fatal(err)
	}
	events, err := e.kube.CoreV1().ConfigMaps(metav1.NamespaceDefault).Watch(e.Context(),
		metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		e.Fatal(err)
	}
	w := &pageWrites{writes: map[string]int{}}
	var counting sync.WaitGroup
	counting.Go(func() {
		for event := range events.ResultChan() {
			if page, isPage := event.Object.(*corev1.ConfigMap); isPage && event.Type == watch.Modified {
				w.mu.Lock()
				w.writes[page.Name+" "+greetingOf(page)]++
				w.mu.Unlock()
			}
		}
	})
	e.Cleanup(func() { events.Stop(); counting.Wait() })
	return w
}

func (w *pageWrites) of(app, greeting string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.writes[app+"-page "+greeting+","]
}

// The leader's node is disconnected from the network, and reconnected after another replica has become the leader.
func TestPartition_AnotherReplicaLeads(t *testing.T) {
	e := newEnv(t)
	e.serveWebApps()
	pod, identity := e.leader()
	node := pod.Spec.NodeName
	network := os.Getenv("KIND_NETWORK")
	address := fmt.Sprintf("{{(index .NetworkSettings.Networks %q).IPAddress}}", network)
	before := e.run("docker", "inspect", "--format", address, node)
	writes := e.countPageWrites()

	began := time.Now()
	e.run("docker", "network", "disconnect", network, node)
	connect := sync.OnceFunc(func() { e.run("docker", "network", "connect", network, node) })
	defer connect()
	e.greet("Disconnected")
	// The leader renews the lease every retry period. The other replicas check it at the same interval plus up to 20%.
	next, took := e.otherLeader(leaseDuration+2*retryPeriod+slack, identity)
	if podOf(next) == pod.Name {
		t.Fatalf("%s leads although its node is disconnected", next)
	}
	all := e.pages("Disconnected", timeout)
	t.Logf("disconnected %s with the leader %s: %s leads after %s, and all %d changed WebApps are reconciled %s later",
		node, identity, next, took, apps, all)

	e.eventually(timeout, "the node is not ready", func(ctx context.Context) error {
		if ready, err := e.nodeIsReady(ctx, node); err != nil || ready {
			return errors.Join(err, errors.New("the node is still ready"))
		}
		return nil
	})
	t.Logf("the node became NotReady %s after it was disconnected", time.Since(began))
	again := time.Now()
	connect()
	if after := e.run("docker", "inspect", "--format", address, node); after != before {
		t.Fatalf("the address of the node changed from %s to %s", before, after)
	}
	e.eventually(timeout, "the node is ready", func(ctx context.Context) error {
		if ready, err := e.nodeIsReady(ctx, node); err != nil || !ready {
			return errors.Join(err, errors.New("the node is not ready yet"))
		}
		return nil
	})
	t.Logf("reconnected the node with its previous address %s: it was Ready after %s", before, time.Since(again))
	now, err := e.kube.CoreV1().Pods(namespace).Get(t.Context(), pod.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	e.eventually(timeout, "both replicas are ready", func(ctx context.Context) error {
		if now, err = e.kube.CoreV1().Pods(namespace).Get(ctx, pod.Name, metav1.GetOptions{}); err != nil {
			return err
		}
		if !isReady(now) {
			return errors.New("the former leader is not ready")
		}
		return nil
	})
	status := now.Status.ContainerStatuses[0]
	t.Logf("the Pod of the former leader is ready after %s, with %d restarts; last state %+v",
		time.Since(again), status.RestartCount, status.LastTerminationState.Terminated)

	e.fenceHeld(pod.Name, next, began)

	e.greet("Connected")
	e.pages("Connected", timeout)
	if _, current := e.leader(); current != next {
		t.Errorf("the leader changed from %s to %s after the node was connected again", next, current)
	}
	for _, greeting := range []string{"Disconnected", "Connected"} {
		for i := range apps {
			if n := writes.of(appName(i), greeting); n != 1 {
				t.Errorf("the page of %s was written %d times for the greeting %s, want once", appName(i), n, greeting)
			}
		}
	}
}

// fenceHeld checks the logs of both Pods to verify that the former leader detected the loss of its lease before next
// started leading. All containers use the machine's clock, so their timestamps can be compared.
func (e *env) fenceHeld(former, next string, since time.Time) {
	e.Helper()
	const lost, leading = "Lease lost", "Started leading" // Log messages of package replica.
	formerLog, nextLog := e.logSince(former, since), e.logSince(podOf(next), since)
	loss, ok := formerLog.first(lost)
	if !ok {
		e.Fatalf("%s did not log %q in %d lines", former, lost, len(formerLog))
	}
	win, ok := nextLog.first(leading)
	if !ok {
		e.Fatalf("%s did not log %q in %d lines", next, leading, len(nextLog))
	}
	if again, ok := formerLog.first(leading); ok {
		e.Errorf("%s led again at %s, in term %d", former, again.Time, again.Term)
	}
	now, err := e.kube.CoordinationV1().Leases(namespace).Get(e.Context(), lease, metav1.GetOptions{})
	if err != nil {
		e.Fatal(err)
	}
	if holder(now) != next || now.Spec.AcquireTime == nil {
		e.Fatalf("the lease is not held by %s: %+v", next, now.Spec)
	}
	acquired := now.Spec.AcquireTime.Time
	if !loss.Time.Before(acquired) || !loss.Time.Before(win.Time) {
		e.Errorf("term %d of %s ended at %s, but %s acquired the lease at %s and started leading at %s",
			loss.Term, former, loss.Time, next, acquired, win.Time)
	}
	e.Logf("term %d of the former leader ended %s after its node was disconnected", loss.Term, loss.Time.Sub(since))
	e.Logf("%s acquired the lease %s later, and logged the start of its term %d %s after that",
		next, acquired.Sub(loss.Time), win.Term, win.Time.Sub(acquired))
}

func (e *env) nodeIsReady(ctx context.Context, name string) (bool, error) {
	node, err := e.kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue, nil
		}
	}
	return false, nil
}
