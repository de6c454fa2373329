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
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"

	"github.com/dynamic-controller/engine/test/cluster"
)

var shared = cluster.NewShared(cluster.Options{WithControllers: true})

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
const patience = 2 * time.Minute

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
	// Itself, the platform's two, and the control plane's three.
	if got := d.processes(); len(got) != 6 && runtime.GOOS == "linux" {
		t.Errorf("these processes come of it: %q", got)
	}
	for _, line := range []string{
		"applied the Blueprint webapps, .*: its type webapps.demo.example.com is served after \\d+ ms",
		"made the WebApp first: it became a ConfigMap, a Service and a Deployment, and is Ready after \\d+ ms",
		"made 20 more, one by one; made -> Ready: \\d+ ms",
		"deleted the ConfigMap first-page: it is back after \\d+ ms",
		"changed the Blueprint: all 21 WebApps have what it says now after \\d+ ms",
		"broke the Blueprint: refused after \\d+ ms",
		`spec.resources\[0\].template.data\["index.html"\]: \${self.spec.greting}: undefined field 'greting'`,
		"what ran before keeps running: a changed WebApp has its new page after \\d+ ms",
		"killed replica-\\d, which leads, without warning; its lease lasts 3s",
		"changed or made 21 WebApps and deleted a child",
		"replica-\\d leads \\d+ ms after the kill; after \\d+ ms all is as it should be",
		"nothing was missed and nothing doubled: a watch saw each of the 21 pages written once",
		"replica-\\d runs again and stands by",
		"deleted the Blueprint: 22 WebApps, what they became and their type are gone after \\d+ ms",
		"all replicas of dynamic-controller ended \\d+ ms after SIGTERM",
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
	kube, err := kubernetes.NewForConfig(shared.Cluster(t).Config())
	if err != nil {
		t.Fatal(err)
	}
	_, err = kube.CoordinationV1().Leases(metav1.NamespaceSystem).Get(t.Context(), leaseName, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("the lease is left: %v", err)
	}
}

func TestTheLeaseOfAnotherPlatformIsLeftAlone(t *testing.T) {
	kube, err := kubernetes.NewForConfig(shared.Cluster(t).Config())
	if err != nil {
		t.Fatal(err)
	}
	leases := kube.CoordinationV1().Leases("kube-public")
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: leaseName}}
	if _, err := leases.Create(t.Context(), lease, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	d := start(t, foreign(t), "--namespace", "kube-public")
	d.end(1)
	if got := d.stderr.String(); !strings.Contains(got, "there is a lease kube-public/dynamic-controller") {
		t.Errorf("got %q", got)
	}
	if err := leases.Delete(t.Context(), leaseName, metav1.DeleteOptions{}); err != nil {
		t.Errorf("it was not left: %v", err)
	}
}

func TestWhatIsDoubledIsFound(t *testing.T) {
	for name, test := range map[string]struct {
		pages []string
		want  string
	}{
		"written once":      {[]string{"before", "now"}, ""},
		"missed":            {[]string{"before"}, "written 0 times"},
		"doubled":           {[]string{"now", "now"}, "written 2 times"},
		"of another change": {[]string{"now", "after", "after"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := &pageWatch{writes: map[string]map[string]int{}}
			for _, text := range test.pages {
				obj := &unstructured.Unstructured{Object: map[string]any{"data": map[string]any{"index.html": text + ", from 10.0.0.1"}}}
				obj.SetName("one-page")
				w.saw(obj)
			}
			err := w.notOnce([]string{"one"}, "now")
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("got the error %v, want %q", err, test.want)
			}
		})
	}
}

func TestAPlatformThatIsNotDeployedIsSaid(t *testing.T) {
	d := start(t, foreign(t), "--deployed", "true", "--namespace", "kube-public")
	d.end(1)
	if got := d.stderr.String(); !strings.Contains(got, "0 Pods with app.kubernetes.io/name=dynamic-controller are ready in namespace kube-public, and it takes 2") {
		t.Errorf("got %q", got)
	}
}

func TestCtrlCEndsTheDemonstration(t *testing.T) {
	kubeconfig := foreign(t)
	d := start(t, kubeconfig)
	d.waitSaid("made the WebApp first")
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

func TestAReplicaMayBeKilledByWhoPlays(t *testing.T) {
	d := start(t, foreign(t), "--stay")
	running := regexp.MustCompile(`process (\d+)`).FindAllStringSubmatch(d.waitSaid("replicas of .* run: .*"), -1)
	if len(running) != 2 {
		t.Fatalf("got %q", running)
	}
	kill := func(i int) {
		pid, err := strconv.Atoi(running[i][1])
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	d.waitSaid("Ready to be played with")
	kill(0)
	d.waitSaid("replica-1 has ended: signal: killed")
	kill(1) // and nobody is left
	d.end(1)
	if got := d.stderr.String(); !strings.Contains(got, "dynamic-controller has ended: signal: killed") || !strings.Contains(got, `"msg":"Started serving"`) {
		t.Errorf("got %q", got)
	}
}

func TestNothingIsLeftWhenTheDemonstrationIsKilled(t *testing.T) {
	d := start(t, "")
	d.waitSaid("made the WebApp first")
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
	c, err := openCluster(t.Context(), quiet, metav1.NamespaceSystem)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	// Nobody defines what a Blueprint is.
	err = tell(ctx, quiet, c, &processes{})
	if err == nil || !strings.Contains(err.Error(), "not seen: the API server takes a Blueprint") {
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
