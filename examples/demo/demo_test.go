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
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/dynamic-controller/engine/internal/testkit"
	"github.com/dynamic-controller/engine/test/cluster"
)

var shared = cluster.NewShared(cluster.Options{WithControllers: true})

// binaries is the directory that contains the programs. TestMain sets it.
var binaries string

func TestMain(m *testing.M) { goleak.VerifyTestMain(shared.Main(built{m})) }

// built builds the programs and then runs the tests.
type built struct{ tests *testing.M }

func (b built) Run() int {
	dir, err := os.MkdirTemp("", "demo-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binaries = dir
	for _, program := range []string{".", "../../cmd/dynamic-controller"} { // in two modules
		build := exec.Command("go", "build", "-C", program, "-o", dir, ".")
		build.Env = append(os.Environ(), "CGO_ENABLED=0") // as in the image
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build %s: %v\n%s", program, err, out)
			return 1
		}
	}
	return b.tests.Run()
}

// timeout is generous: a demonstration takes less than a minute.
const timeout = 2 * time.Minute

// demo is the running program.
type demo struct {
	*testing.T
	cmd    *exec.Cmd
	marker string // set in the environment of all processes of the demonstration
	lines  *bufio.Reader
	stdout bytes.Buffer // the output so far
	stderr bytes.Buffer
}

// start starts the program with the given kubeconfig. If kubeconfig is empty, the program starts its own cluster.
func start(t *testing.T, kubeconfig string, args ...string) *demo {
	t.Helper()
	d := &demo{T: t, marker: "DEMO_TEST=" + strconv.FormatInt(time.Now().UnixNano(), 36)}
	args = append(args,
		"--binary", filepath.Join(binaries, "dynamic-controller"), "--log", filepath.Join(t.TempDir(), "log"))
	d.cmd = exec.Command(filepath.Join(binaries, "demo"), args...)
	d.cmd.Env = append(os.Environ(), d.marker, "KUBECONFIG="+kubeconfig)
	d.cmd.Stderr = &d.stderr
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	d.lines = bufio.NewReader(io.TeeReader(out, &d.stdout))
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	killer := time.AfterFunc(timeout, func() { _ = d.cmd.Process.Kill() })
	t.Cleanup(func() {
		killer.Stop()
		_ = d.cmd.Process.Kill()
		_ = d.cmd.Wait()
		if t.Failed() {
			t.Logf("the output is:\n%s%s", d.stdout.String(), d.stderr.String())
		}
	})
	return d
}

// waitForLine reads until a line matches the expression, and returns the match.
func (d *demo) waitForLine(expression string) string {
	d.Helper()
	for {
		line, err := d.lines.ReadString('\n')
		if found := regexp.MustCompile(expression).FindString(line); found != "" {
			return found
		}
		if err != nil {
			d.Fatalf("no line matches %q: %v", expression, err)
		}
	}
}

func (d *demo) signal(sig os.Signal) {
	d.Helper()
	if err := d.cmd.Process.Signal(sig); err != nil {
		d.Fatal(err)
	}
}

// end waits until the program has exited. It checks the exit code and that no processes are left.
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

// processes returns the command lines of the program and its descendants. It works only on Linux.
func (d *demo) processes() (found []string) {
	environments, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		d.Fatal(err)
	}
	for _, path := range environments {
		environ, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(environ, []byte(d.marker)) {
			continue // the process has exited or is not a descendant
		}
		command, err := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		if err == nil && len(command) > 0 {
			found = append(found, strings.ReplaceAll(string(command), "\x00", " "))
		}
	}
	return found
}

// foreign returns the kubeconfig of a cluster that the program did not start.
func foreign(t *testing.T) (kubeconfig string) {
	t.Helper()
	return shared.Cluster(t).Kubeconfig()
}

func TestDemo_RunsOnItsOwnControlPlane(t *testing.T) {
	d := start(t, "")
	d.waitForLine(`process \d+`)
	want := 6 // The program itself, two replicas, and three processes of the control plane.
	if os.Getenv("KUBEBUILDER_ASSETS") != "" {
		want += 2 // Two processes of the control plane run etcd and kube-apiserver as separate programs.
	}
	if got := d.processes(); len(got) != want && runtime.GOOS == "linux" {
		t.Errorf("the processes are %q", got)
	}
	for _, line := range []string{
		"applied the Blueprint webapps, .*: its type webapps.demo.example.com is served after \\d+ ms",
		"created the WebApp first: it has a ConfigMap, a Service and a Deployment, and is Ready after \\d+ ms",
		"created 20 more, one at a time: each is Ready after \\d+ ms",
		"deleted the ConfigMap first-page: it was created again after \\d+ ms",
		"changed the Blueprint: all 21 WebApps are updated after \\d+ ms",
		"made a mistake in the Blueprint: it is rejected after \\d+ ms",
		`spec.resources\[0\].template.data\["index.html"\]: \${self.spec.greting}: unknown field "greting"`,
		"the previous revision is still served: a changed WebApp is updated after \\d+ ms",
		"killed the leader replica-\\d with SIGKILL; its lease lasts 3s",
		"changed or created 21 WebApps and deleted a child",
		"replica-\\d leads \\d+ ms after the kill; after \\d+ ms all changes are applied",
		"no write is missing or duplicated: a watch received each of the 21 pages once",
		"replica-\\d runs again as a standby",
		"deleted the Blueprint: 22 WebApps, their children and their type are deleted after \\d+ ms",
		"all replicas of dynamic-controller ended \\d+ ms after SIGTERM",
	} {
		d.waitForLine(line)
	}
	d.end(0)
}

func TestDemo_CleansUpForeignCluster(t *testing.T) {
	kubeconfig := foreign(t)
	for range 2 { // the second run would fail if objects were left over
		start(t, kubeconfig).end(0)
	}
	kube, err := kubernetes.NewForConfig(shared.Cluster(t).Config())
	if err != nil {
		t.Fatal(err)
	}
	_, err = kube.CoordinationV1().Leases(metav1.NamespaceSystem).Get(t.Context(), leaseName, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("the lease was not deleted: %v", err)
	}
}

func TestDemo_RefusesExistingLease(t *testing.T) {
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
	if got := d.stderr.String(); !strings.Contains(got, "the lease kube-public/dynamic-controller exists") {
		t.Errorf("got %q", got)
	}
	if err := leases.Delete(t.Context(), leaseName, metav1.DeleteOptions{}); err != nil {
		t.Errorf("the lease was deleted: %v", err)
	}
}

func TestPageWatch_CountsWrites(t *testing.T) {
	for name, test := range map[string]struct {
		pages []string
		want  string
	}{
		"written once":  {[]string{"before", "now"}, ""},
		"never written": {[]string{"before"}, "written 0 times"},
		"written twice": {[]string{"now", "now"}, "written 2 times"},
		"another text":  {[]string{"now", "after", "after"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := &pageWatch{writes: map[string]map[string]int{}}
			for _, text := range test.pages {
				data := map[string]any{"index.html": text + ", from 10.0.0.1"}
				obj := &unstructured.Unstructured{Object: map[string]any{"data": data}}
				obj.SetName("one-page")
				w.record(obj)
			}
			err := w.checkOnce([]string{"one"}, "now")
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("got the error %v, want %q", err, test.want)
			}
		})
	}
}

func TestDemo_RequiresReadyPods(t *testing.T) {
	d := start(t, foreign(t), "--deployed", "true", "--namespace", "kube-public")
	d.end(1)
	want := "0 Pods with app.kubernetes.io/name=dynamic-controller are ready in namespace kube-public, want at least 2"
	if got := d.stderr.String(); !strings.Contains(got, want) {
		t.Errorf("got %q", got)
	}
}

func TestDemo_EndsOnCtrlC(t *testing.T) {
	kubeconfig := foreign(t)
	d := start(t, kubeconfig)
	d.waitForLine("created the WebApp first")
	d.signal(syscall.SIGINT)
	d.end(130)
	start(t, kubeconfig).end(0)
}

func TestDemo_StaysUntilCtrlC(t *testing.T) {
	d := start(t, foreign(t), "--stay")
	d.waitForLine("export KUBECONFIG=" + foreign(t))
	d.signal(syscall.SIGINT)
	d.end(0)
}

// The operator of make run can read the status of the leader.
func TestDemo_StayServesDiagnostics(t *testing.T) {
	d := start(t, "", "--stay")
	kubeconfig := strings.TrimPrefix(d.waitForLine("export KUBECONFIG=.*"), "export KUBECONFIG=")
	d.waitForLine("TOKEN=.*create token operator -n dynamic-controller-system")
	command := strings.Fields(d.waitForLine(`dynamic-controller status .*\$TOKEN`))
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	accounts := kubernetes.NewForConfigOrDie(cfg).CoreV1().ServiceAccounts(ownNamespace)
	token, err := accounts.CreateToken(t.Context(), operator, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i, arg := range command {
		command[i] = strings.ReplaceAll(arg, "$TOKEN", token.Status.Token)
	}
	status := exec.CommandContext(t.Context(), filepath.Join(binaries, command[0]), command[1:]...)
	status.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	if out, err := status.CombinedOutput(); err != nil || !strings.Contains(string(out), "1 Served") {
		t.Errorf("%v: %s", err, out)
	}
	d.signal(syscall.SIGINT)
	d.end(0)
}

func TestDemo_StayToleratesKilledReplica(t *testing.T) {
	d := start(t, foreign(t), "--stay")
	running := regexp.MustCompile(`process (\d+)`).FindAllStringSubmatch(d.waitForLine("replicas of .* run: .*"), -1)
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
	d.waitForLine("The platform runs until Ctrl-C")
	kill(0)
	d.waitForLine("replica-1 has ended: signal: killed")
	kill(1) // the last one
	d.end(1)
	for _, want := range []string{"dynamic-controller has ended: signal: killed", `"msg":"Started serving"`} {
		if got := d.stderr.String(); !strings.Contains(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestDemo_LeavesNoProcessesWhenKilled(t *testing.T) {
	d := start(t, "")
	d.waitForLine("created the WebApp first")
	d.signal(os.Kill)
	_ = d.cmd.Wait()
	testkit.Eventually(t, timeout, func() error {
		if left := d.processes(); len(left) > 0 {
			return fmt.Errorf("these processes are left: %q", left)
		}
		return nil
	})
}

func TestRunChapters_FailsWithoutPlatform(t *testing.T) {
	t.Setenv("KUBECONFIG", foreign(t))
	quiet := func(string, ...any) {}
	c, err := openCluster(t.Context(), quiet, metav1.NamespaceSystem)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	// No platform defines the type Blueprint.
	err = runChapters(ctx, quiet, c, &processes{})
	if err == nil || !strings.Contains(err.Error(), `condition "the API server accepts a Blueprint" was not met`) {
		t.Errorf("got the error %v", err)
	}
	if err := c.close(); err != nil {
		t.Error(err)
	}
}

func TestWaitFor_GivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, failure := time.Now(), errors.New("nothing there")
		err := waitFor(t.Context(), condition{"it", func(context.Context) error { return failure }})
		want := `condition "it" was not met (gave up after 15s; last error: nothing there)`
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got the error %v, want %s", err, want)
		}
		if took := time.Since(began); took != 15*time.Second {
			t.Errorf("waitFor returned after %s", took)
		}
	})
}
