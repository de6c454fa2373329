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

// starterEnv names an environment variable. If the variable is set, the test binary starts a cluster and then blocks
// until it is killed.
const starterEnv = "CLUSTER_TEST_STARTER"

func runStarter() {
	ctx := context.Background()
	c, err := cluster.Start(ctx, cluster.Options{WithControllers: true})
	if err == nil { // A restarted component is a child of this process.
		err = errors.Join(c.APIServer().Kill(), c.APIServer().Start(ctx))
	}
	if err != nil {
		if c != nil {
			err = errors.Join(err, c.Stop()) // The second error has the output of a control plane that has exited.
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(filepath.Dir(c.Kubeconfig()))
	select {}
}

// processNames are the names of all processes of a cluster.
var processNames = []string{"up", "etcd", "apiserver"}

func wantNothingLeft(t *testing.T, dir string, pids map[string]int) {
	t.Helper()
	eventually(t, "all processes and files are removed", func(context.Context) error {
		var left []error
		for name, pid := range pids {
			if alive(pid) {
				left = append(left, fmt.Errorf("%s (process %d) is running", name, pid))
			}
		}
		if _, err := os.Stat(dir); err == nil {
			left = append(left, fmt.Errorf("directory %s exists", dir))
		}
		return errors.Join(left...)
	})
}

func pidsOf(t *testing.T, dir string) map[string]int {
	t.Helper()
	pids := map[string]int{}
	for _, name := range processNames {
		pids[name] = filePID(t, dir, name)
		if !alive(pids[name]) {
			t.Errorf("%s (process %d) is not running", name, pids[name])
		}
	}
	return pids
}

func TestStop_LeavesNoProcessesOrFiles(t *testing.T) {
	for _, s := range []struct {
		name string
		do   func(ctx context.Context, c *cluster.Cluster) error
	}{
		{"unchanged cluster", func(context.Context, *cluster.Cluster) error { return nil }},
		{"restarted components", func(ctx context.Context, c *cluster.Cluster) error {
			return errors.Join(c.Etcd().Kill(), c.Etcd().Start(ctx), c.APIServer().Kill(), c.APIServer().Start(ctx))
		}},
		{"paused components", func(_ context.Context, c *cluster.Cluster) error {
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
					t.Errorf("%s (process %d) is still running", name, pid)
				}
			}
			if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("stat of directory %s: got %v, want it to be removed", dir, err)
			}
			if err := c.Stop(); err != nil {
				t.Errorf("the second call to Stop returned %v", err)
			}
		})
	}
}

func TestStart_ConcurrentStartsAndStops(t *testing.T) {
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

func TestStart_LeavesNothingIfTheStartingProcessIsKilled(t *testing.T) {
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
	_ = starter.Wait() // The error reports the kill.
	wantNothingLeft(t, dir, pids)
}

func TestStart_ServersExitIfTheBinaryIsKilled(t *testing.T) {
	c, err := cluster.Start(t.Context(), cluster.Options{})
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(c.Kubeconfig())
	pids := pidsOf(t, dir)
	if err := syscall.Kill(pids["up"], syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	eventually(t, "all processes have exited", func(context.Context) error {
		for name, pid := range pids {
			if alive(pid) {
				return fmt.Errorf("%s (process %d) is running", name, pid)
			}
		}
		return nil
	})
	if err := c.Stop(); err == nil || !strings.Contains(err.Error(), "exited before Stop (signal: killed)") {
		t.Errorf("Stop returned %v", err)
	}
	wantNothingLeft(t, dir, pids)
}
