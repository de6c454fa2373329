package cluster_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/dynamic-controller/engine/internal/testkit"
	"github.com/dynamic-controller/engine/test/cluster"
)

var shared = cluster.NewShared(cluster.Options{WithControllers: true})

func TestMain(m *testing.M) {
	if os.Getenv(starterEnv) != "" {
		runStarter()
	}
	goleak.VerifyTestMain(shared.Main(m))
}

// deadline limits operations that take a few seconds at most.
const deadline = time.Minute

// eventually polls until done returns nil. After the deadline, it fails the test with the last error.
func eventually(t *testing.T, condition string, done func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	start := time.Now()
	if err := testkit.Poll(ctx, done); err != nil {
		t.Fatalf("%s: %v", condition, err)
	}
	t.Logf("%s after %v", condition, time.Since(start).Round(time.Millisecond))
}

func clientset(t *testing.T, c *cluster.Cluster) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(c.Config())
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func dynamicClient(t *testing.T, c *cluster.Cluster) dynamic.Interface {
	t.Helper()
	client, err := dynamic.NewForConfig(c.Config())
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// object returns a new object in the default namespace. It does not create the object in the cluster.
func object(gvk schema.GroupVersionKind, name string, owners ...*unstructured.Unstructured) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(gvk)
	u.SetNamespace(metav1.NamespaceDefault)
	u.SetName(name)
	var references []metav1.OwnerReference
	for _, owner := range owners {
		references = append(references, *metav1.NewControllerRef(owner, owner.GroupVersionKind()))
	}
	u.SetOwnerReferences(references)
	return u
}

// alive reports whether a process is running. A process that has exited but has not been reaped is not running.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	state := stat[bytes.LastIndexByte(stat, ')')+2]
	return state != 'Z' && state != 'X'
}

// filePID returns the process ID in a PID file of the cluster.
func filePID(t *testing.T, dir, name string) int {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name+".pid"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(data)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}
