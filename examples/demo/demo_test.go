package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/dynamic-controller/engine/test/cluster"
)

var shared = cluster.NewShared(cluster.Options{})

// binaries is where the programs are, built by TestMain.
var binaries string

func TestMain(m *testing.M) { goleak.VerifyTestMain(shared.Main(built{m})) }

// built builds the programs around the tests.
type built struct{ tests *testing.M }

func (b built) Run() int {
	dir, err := os.MkdirTemp("", "demo-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binaries = dir
	build := exec.Command("go", "build", "-o", dir, ".", "../../cmd/dynamic-controller")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the programs: %v\n%s", err, out)
		return 1
	}
	return b.tests.Run()
}

// patience is how long a test waits for what takes seconds when it works.
const patience = 40 * time.Second

// demo is the program, running.
type demo struct {
	*testing.T
	cmd    *exec.Cmd
	marker string // in the environment of all processes that come of it
	lines  *bufio.Reader
	said   bytes.Buffer // so far
	stderr bytes.Buffer
}

// start runs the program, on the cluster of the kubeconfig or on its own.
func start(t *testing.T, kubeconfig string, args ...string) *demo {
	t.Helper()
	d := &demo{T: t, marker: "DEMO_TEST=" + strconv.FormatInt(time.Now().UnixNano(), 36)}
	args = append(args, "--binary", filepath.Join(binaries, "dynamic-controller"), "--log", filepath.Join(t.TempDir(), "log"))
	d.cmd = exec.Command(filepath.Join(binaries, "demo"), args...)
	d.cmd.Env = append(os.Environ(), d.marker, "KUBECONFIG="+kubeconfig)
	d.cmd.Stderr = &d.stderr
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	d.lines = bufio.NewReader(io.TeeReader(out, &d.said))
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	tooLong := time.AfterFunc(patience, func() { _ = d.cmd.Process.Kill() })
	t.Cleanup(func() {
		tooLong.Stop()
		_ = d.cmd.Process.Kill()
		_ = d.cmd.Wait()
		if t.Failed() {
			t.Logf("it said:\n%s%s", d.said.String(), d.stderr.String())
		}
	})
	return d
}

// waitSaid reads until a line has what is looked for, and returns that.
func (d *demo) waitSaid(what string) string {
	d.Helper()
	for {
		line, err := d.lines.ReadString('\n')
		if found := regexp.MustCompile(what).FindString(line); found != "" {
			return found
		}
		if err != nil {
			d.Fatalf("it has not said %q: %v", what, err)
		}
	}
}

func (d *demo) signal(sig os.Signal) {
	d.Helper()
	if err := d.cmd.Process.Signal(sig); err != nil {
		d.Fatal(err)
	}
}

// end waits for the program's end, with the exit code, after which nothing of it may be left.
func (d *demo) end(wantCode int) {
	d.Helper()
	if _, err := io.Copy(io.Discard, d.lines); err != nil {
		d.Error(err)
	}
	_ = d.cmd.Wait()
	if code := d.cmd.ProcessState.ExitCode(); code != wantCode {
		d.Errorf("exit code %d, want %d", code, wantCode)
	}
	if left := d.processes(); len(left) > 0 {
		d.Errorf("these processes are left: %q", left)
	}
}

// processes lists the command lines of those that come of the program. It knows how on Linux alone.
func (d *demo) processes() (found []string) {
	environments, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		d.Fatal(err)
	}
	for _, path := range environments {
		environ, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(environ, []byte(d.marker)) {
			continue // gone meanwhile, or somebody else's
		}
		command, err := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		if err == nil && len(command) > 0 {
			found = append(found, strings.ReplaceAll(string(command), "\x00", " "))
		}
	}
	return found
}

// foreign is a cluster that the program does not start.
func foreign(t *testing.T) (kubeconfig string) {
	t.Helper()
	return shared.Cluster(t).Kubeconfig()
}

func TestTheDemonstrationOnItsOwnControlPlane(t *testing.T) {
	d := start(t, "")
	d.waitSaid(`process \d+`)
	// Itself, the platform, and the control plane's three.
	if got := d.processes(); len(got) != 5 && runtime.GOOS == "linux" {
		t.Errorf("these processes come of it: %q", got)
	}
	for _, line := range []string{
		"defined the type widgets.demo.example.com; defined -> served: \\d+ ms",
		"defined the type gadgets.demo.example.com; defined -> served: \\d+ ms",
		"wrote 40 objects one by one; written -> reconciled: \\d+ ms",
		"changed an object; written -> reconciled: \\d+ ms",
		"deleted the type widgets.demo.example.com with its objects; deleted -> released: \\d+ ms",
		"took the label off gadgets.demo.example.com; unlabelled -> released: \\d+ ms",
		"dynamic-controller ended \\d+ ms after SIGTERM",
	} {
		d.waitSaid(line)
	}
	d.end(0)
}

func TestTheDemonstrationOnAClusterOfOthersLeavesNoTypes(t *testing.T) {
	kubeconfig := foreign(t)
	for range 2 { // the second would find what the first left
		start(t, kubeconfig).end(0)
	}
}

func TestCtrlCEndsTheDemonstration(t *testing.T) {
	kubeconfig := foreign(t)
	d := start(t, kubeconfig)
	d.waitSaid("defined the type widgets")
	d.signal(syscall.SIGINT)
	d.end(130)
	start(t, kubeconfig).end(0)
}

func TestItStaysUntilCtrlC(t *testing.T) {
	d := start(t, foreign(t), "--stay")
	d.waitSaid("export KUBECONFIG=" + foreign(t))
	d.signal(syscall.SIGINT)
	d.end(0)
}

func TestAPlatformThatDiesIsAFailure(t *testing.T) {
	d := start(t, foreign(t), "--stay")
	pid, err := strconv.Atoi(strings.Fields(d.waitSaid(`process \d+`))[1])
	if err != nil {
		t.Fatal(err)
	}
	d.waitSaid("Ready to be played with")
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	d.end(1)
	if got := d.stderr.String(); !strings.Contains(got, "dynamic-controller has ended: signal: killed") || !strings.Contains(got, `"msg":"reconciling"`) {
		t.Errorf("got %q", got)
	}
}

func TestNothingIsLeftWhenTheDemonstrationIsKilled(t *testing.T) {
	d := start(t, "")
	d.waitSaid("defined the type widgets")
	d.signal(os.Kill)
	_ = d.cmd.Wait()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.Now().Add(patience); len(d.processes()) > 0; <-ticker.C {
		if time.Now().After(deadline) {
			t.Fatalf("these processes are left: %q", d.processes())
		}
	}
}

func TestWhatIsNotSeenIsAFailure(t *testing.T) {
	t.Setenv("KUBECONFIG", foreign(t))
	quiet := func(string, ...any) {}
	c, err := openCluster(t.Context(), quiet)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	// Nobody serves the types.
	err = tell(ctx, quiet, c, &platform{log: &logFile{}})
	if err == nil || !strings.Contains(err.Error(), "not seen: widget first is Ready at generation 1") {
		t.Errorf("got the error %v", err)
	}
	if err := c.close(); err != nil {
		t.Error(err)
	}
}

func TestSeeGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, failure := time.Now(), errors.New("nothing there")
		err := see(t.Context(), sight{"it", func(context.Context) error { return failure }})
		if err == nil || !strings.Contains(err.Error(), "not seen: it (gave up after 15s; the last look: nothing there)") {
			t.Errorf("got the error %v", err)
		}
		if took := time.Since(began); took != 15*time.Second {
			t.Errorf("it took %s", took)
		}
	})
}
