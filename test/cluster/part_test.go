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

func TestAServerThatWasEndedComesBackWithItsData(t *testing.T) {
	c := shared.Cluster(t)
	client := clientset(t, c).CoreV1().ConfigMaps(metav1.NamespaceDefault)
	for _, p := range []struct {
		name string
		part *cluster.Part
		end  func() error
	}{
		{"the API server, killed", c.APIServer(), c.APIServer().Kill},
		{"the API server, stopped", c.APIServer(), c.APIServer().Stop},
		{"etcd, killed", c.Etcd(), c.Etcd().Kill},
		{"etcd, stopped", c.Etcd(), c.Etcd().Stop},
	} {
		t.Run(p.name, func(t *testing.T) {
			ctx := t.Context()
			created, err := client.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "before-"}},
				metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			before, err := p.part.PID()
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			if err := p.end(); err != nil {
				t.Fatal(err)
			}
			t.Logf("ended in %v", time.Since(start))
			if alive(before) {
				t.Error("it still runs")
			}
			if _, err := p.part.PID(); !errors.Is(err, cluster.ErrNotRunning) {
				t.Errorf("its process: %v, want %v", err, cluster.ErrNotRunning)
			}
			if err := p.end(); !errors.Is(err, cluster.ErrNotRunning) {
				t.Errorf("ending it again: %v, want %v", err, cluster.ErrNotRunning)
			}
			short, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			if err := c.WaitReady(short); err == nil {
				t.Error("the cluster says that it is ready")
			}

			start = time.Now()
			if err := p.part.Start(ctx); err != nil {
				t.Fatal(err)
			}
			t.Logf("started in %v", time.Since(start))
			if err := p.part.Start(ctx); !errors.Is(err, cluster.ErrRunning) {
				t.Errorf("starting it again: %v, want %v", err, cluster.ErrRunning)
			}
			if after, err := p.part.PID(); err != nil || after == before {
				t.Errorf("its process was %d and is %d, %v", before, after, err)
			}
			eventually(t, "the cluster is ready", c.WaitReady)
			got, err := client.Get(ctx, created.Name, metav1.GetOptions{})
			if err != nil || got.UID != created.UID {
				t.Errorf("what was written before: %v", err)
			}
			_, err = client.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "after-"}},
				metav1.CreateOptions{})
			if err != nil {
				t.Errorf("what is written after: %v", err)
			}
		})
	}
}

func TestAPausedServerAnswersNothingUntilItIsResumed(t *testing.T) {
	c := shared.Cluster(t)
	for name, part := range map[string]*cluster.Part{"the API server": c.APIServer(), "etcd": c.Etcd()} {
		t.Run(name, func(t *testing.T) {
			if err := part.Pause(); err != nil {
				t.Fatal(err)
			}
			short, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := c.WaitReady(short); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("paused: %v", err)
			}
			if err := part.Resume(); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the cluster is ready", c.WaitReady)
		})
	}
}

func TestAPartMayBeBrokenByManyAtOnce(t *testing.T) {
	const breakers, times = 4, 5
	etcd := shared.Cluster(t).Etcd()
	var wg sync.WaitGroup
	for range breakers {
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

func TestNoPartStartsAfterStop(t *testing.T) {
	c, err := cluster.Start(t.Context(), cluster.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Stop(); err != nil {
		t.Error(err)
	}
	for _, part := range []*cluster.Part{c.Etcd(), c.APIServer()} {
		if err := part.Start(t.Context()); err == nil {
			t.Error("it started")
		}
	}
}

func TestAStartOfAPartThatFailsSaysWhy(t *testing.T) {
	c, err := cluster.Start(t.Context(), cluster.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.APIServer().Kill(), c.Etcd().Kill()); err != nil {
		t.Error(err)
	}
	// Without etcd the API server waits for it.
	short, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if err := c.APIServer().Start(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without etcd: %v", err)
	}
	if _, err := c.APIServer().PID(); !errors.Is(err, cluster.ErrNotRunning) {
		t.Errorf("what did not start: %v, want %v", err, cluster.ErrNotRunning)
	}
	if err := c.Stop(); err != nil {
		t.Error(err)
	}
}
