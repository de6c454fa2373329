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

	"github.com/dynamic-controller/engine/test/cluster"
)

var shared = cluster.NewShared(cluster.Options{WithControllers: true})

func TestMain(m *testing.M) {
	if os.Getenv(starterEnv) != "" {
		runStarter()
	}
	goleak.VerifyTestMain(shared.Main(m))
}

// deadline is for what takes a few seconds at most.
const deadline = time.Minute

// eventually polls until done returns nil, or fails the test with its last answer.
func eventually(t *testing.T, what string, done func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for start := time.Now(); ; {
		err := done(ctx)
		if err == nil {
			t.Logf("%s after %v", what, time.Since(start).Round(time.Millisecond))
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("not within %v: %s: %v", deadline, what, err)
		case <-ticker.C:
		}
	}
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

// object is one of namespace "default", to be created.
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

// alive says whether a process still runs; one that only waits to be reaped does not.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	state := stat[bytes.LastIndexByte(stat, ')')+2]
	return state != 'Z' && state != 'X'
}

// filePID reads one of the files in which the processes of a cluster name themselves.
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
