package cluster_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dynamic-controller/engine/test/cluster"
)

func TestComponent_RestartsWithItsData(t *testing.T) {
	c := shared.Cluster(t)
	for _, p := range []struct {
		name      string
		component *cluster.Component
		end       func() error
	}{
		{"API server, killed", c.APIServer(), c.APIServer().Kill},
		{"API server, stopped", c.APIServer(), c.APIServer().Stop},
		{"etcd, killed", c.Etcd(), c.Etcd().Kill},
		{"etcd, stopped", c.Etcd(), c.Etcd().Stop},
	} {
		t.Run(p.name, func(t *testing.T) {
			ctx := t.Context()
			client := clientset(t, c).CoreV1().ConfigMaps(metav1.NamespaceDefault)
			created, err := client.Create(ctx, configMapNamed("before-"), metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			before, err := p.component.PID()
			if err != nil {
				t.Fatal(err)
			}
			endComponent(t, c, p.component, p.end)
			startComponent(t, p.component)
			if after, err := p.component.PID(); err != nil || after == before {
				t.Errorf("got process ID %d before and %d after the restart, error %v", before, after, err)
			}
			eventually(t, "the cluster is ready", c.WaitReady)
			got, err := client.Get(ctx, created.Name, metav1.GetOptions{})
			if err != nil {
				t.Errorf("get the object created before the restart: %v", err)
			} else if got.UID != created.UID {
				t.Errorf("the object created before the restart has UID %s, want %s", got.UID, created.UID)
			}
			if _, err = client.Create(ctx, configMapNamed("after-"), metav1.CreateOptions{}); err != nil {
				t.Errorf("create an object after the restart: %v", err)
			}
		})
	}
}

func configMapNamed(prefix string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: prefix}}
}

// endComponent ends a running component and checks that it is not running afterwards.
func endComponent(t *testing.T, c *cluster.Cluster, component *cluster.Component, end func() error) {
	t.Helper()
	pid, err := component.PID()
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if err := end(); err != nil {
		t.Fatal(err)
	}
	t.Logf("the component exited within %v", time.Since(start))
	eventually(t, "the process is gone", func(context.Context) error { // its lock is released a moment earlier
		if alive(pid) {
			return errors.New("it is still running")
		}
		return nil
	})
	if _, err := component.PID(); !errors.Is(err, cluster.ErrNotRunning) {
		t.Errorf("PID: got %v, want %v", err, cluster.ErrNotRunning)
	}
	if err := end(); !errors.Is(err, cluster.ErrNotRunning) {
		t.Errorf("end a component that is not running: got %v, want %v", err, cluster.ErrNotRunning)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := c.WaitReady(ctx); err == nil {
		t.Error("WaitReady returned nil while a component was down")
	}
}

func startComponent(t *testing.T, component *cluster.Component) {
	t.Helper()
	start := time.Now()
	if err := component.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("started in %v", time.Since(start))
	if err := component.Start(t.Context()); !errors.Is(err, cluster.ErrRunning) {
		t.Errorf("start a running component: got %v, want %v", err, cluster.ErrRunning)
	}
}

func TestComponent_PausedServerDoesNotRespond(t *testing.T) {
	c := shared.Cluster(t)
	for name, component := range map[string]*cluster.Component{"API server": c.APIServer(), "etcd": c.Etcd()} {
		t.Run(name, func(t *testing.T) {
			if err := component.Pause(); err != nil {
				t.Fatal(err)
			}
			short, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := c.WaitReady(short); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("WaitReady while paused: got %v, want %v", err, context.DeadlineExceeded)
			}
			if err := component.Resume(); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the cluster is ready", c.WaitReady)
		})
	}
}

func TestComponent_ConcurrentKillsAndStarts(t *testing.T) {
	const callers, times = 4, 5
	etcd := shared.Cluster(t).Etcd()
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range times {
				if err := etcd.Kill(); err != nil && !errors.Is(err, cluster.ErrNotRunning) {
					t.Errorf("Kill: %v", err)
				}
				if err := etcd.Start(t.Context()); err != nil && !errors.Is(err, cluster.ErrRunning) {
					t.Errorf("Start: %v", err)
				}
			}
		})
	}
	wg.Wait()
	eventually(t, "the cluster is ready", shared.Cluster(t).WaitReady)
}

func TestComponent_DoesNotStartAfterStop(t *testing.T) {
	c, err := cluster.Start(t.Context(), cluster.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Stop(); err != nil {
		t.Error(err)
	}
	for _, component := range []*cluster.Component{c.Etcd(), c.APIServer()} {
		if err := component.Start(t.Context()); err == nil {
			t.Error("Start succeeded after the cluster was stopped")
		}
	}
}

func TestComponent_StartReportsCauseOfFailure(t *testing.T) {
	c, err := cluster.Start(t.Context(), cluster.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.APIServer().Kill(), c.Etcd().Kill()); err != nil {
		t.Error(err)
	}
	// The API server waits for etcd.
	short, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if err := c.APIServer().Start(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("start without etcd: got %v, want %v", err, context.DeadlineExceeded)
	}
	if _, err := c.APIServer().PID(); !errors.Is(err, cluster.ErrNotRunning) {
		t.Errorf("PID after the failed start: got %v, want %v", err, cluster.ErrNotRunning)
	}
	if err := c.Stop(); err != nil {
		t.Error(err)
	}
}
