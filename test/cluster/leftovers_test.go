package cluster_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/dynamic-controller/engine/test/cluster"
)

// starterEnv makes the test binary a process that starts a cluster and lives until it is killed.
const starterEnv = "CLUSTER_TEST_STARTER"

func runStarter() {
	ctx := context.Background()
	c, err := cluster.Start(ctx, cluster.Options{WithControllers: true})
	if err == nil { // one part of it is the starter's own child
		err = errors.Join(c.APIServer().Kill(), c.APIServer().Start(ctx))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(filepath.Dir(c.Kubeconfig()))
	select {}
}

// parts are the names of all processes of a cluster.
var parts = []string{"up", "etcd", "apiserver"}

func wantNothingLeft(t *testing.T, dir string, pids map[string]int) {
	t.Helper()
	eventually(t, "nothing is left", func(context.Context) error {
		var left []error
		for name, pid := range pids {
			if alive(pid) {
				left = append(left, fmt.Errorf("%s (process %d) runs", name, pid))
			}
		}
		if _, err := os.Stat(dir); err == nil {
			left = append(left, fmt.Errorf("directory %s is there", dir))
		}
		return errors.Join(left...)
	})
}

func pidsOf(t *testing.T, dir string) map[string]int {
	t.Helper()
	pids := map[string]int{}
	for _, name := range parts {
		pids[name] = filePID(t, dir, name)
		if !alive(pids[name]) {
			t.Errorf("%s (process %d) does not run", name, pids[name])
		}
	}
	return pids
}

func TestNothingIsLeftAfterStop(t *testing.T) {
	for _, s := range []struct {
		name string
		do   func(ctx context.Context, c *cluster.Cluster) error
	}{
		{"of a cluster as it was started", func(context.Context, *cluster.Cluster) error { return nil }},
		{"of one whose parts were restarted", func(ctx context.Context, c *cluster.Cluster) error {
			return errors.Join(c.Etcd().Kill(), c.Etcd().Start(ctx), c.APIServer().Kill(), c.APIServer().Start(ctx))
		}},
		{"of one whose parts are paused", func(_ context.Context, c *cluster.Cluster) error {
			return errors.Join(c.Etcd().Pause(), c.APIServer().Pause())
		}},
	} {
		t.Run(s.name, func(t *testing.T) {
			c, err := cluster.Start(t.Context(), cluster.Options{WithControllers: true})
			if err != nil {
				t.Fatal(err)
			}
			if err := s.do(t.Context(), c); err != nil {
				t.Error(err)
			}
			dir := filepath.Dir(c.Kubeconfig())
			pids := pidsOf(t, dir)
			if err := c.Stop(); err != nil {
				t.Error(err)
			}
			for name, pid := range pids {
				if alive(pid) {
					t.Errorf("%s (process %d) still runs", name, pid)
				}
			}
			if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("directory %s: %v", dir, err)
			}
			if err := c.Stop(); err != nil {
				t.Errorf("again: %v", err)
			}
		})
	}
}

func TestClustersMayStartAndStopAtOnce(t *testing.T) {
	const clusters, stoppers = 3, 2
	var wg sync.WaitGroup
	for range clusters {
		wg.Go(func() {
			c, err := cluster.Start(t.Context(), cluster.Options{})
			if err != nil {
				t.Error(err)
				return
			}
			for range stoppers {
				wg.Go(func() {
					if err := c.Stop(); err != nil {
						t.Error(err)
					}
				})
			}
		})
	}
	wg.Wait()
}

func TestNothingIsLeftAfterTheStarterIsKilled(t *testing.T) {
	starter := exec.Command(os.Args[0])
	starter.Env = append(os.Environ(), starterEnv+"=1")
	starter.Stderr = os.Stderr
	out, err := starter.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := starter.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Error(err)
	}
	dir := strings.TrimSpace(line)
	var pids map[string]int
	if dir != "" {
		pids = pidsOf(t, dir)
	}
	if err := starter.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = starter.Wait() // killed
	wantNothingLeft(t, dir, pids)
}

func TestNoServerOutlivesABinaryThatIsKilled(t *testing.T) {
	c, err := cluster.Start(t.Context(), cluster.Options{})
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(c.Kubeconfig())
	pids := pidsOf(t, dir)
	if err := syscall.Kill(pids["up"], syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	eventually(t, "no process is left", func(context.Context) error {
		for name, pid := range pids {
			if alive(pid) {
				return fmt.Errorf("%s (process %d) runs", name, pid)
			}
		}
		return nil
	})
	if err := c.Stop(); err == nil || !strings.Contains(err.Error(), "had ended before (signal: killed)") {
		t.Errorf("Stop says %v", err)
	}
	wantNothingLeft(t, dir, pids)
}
