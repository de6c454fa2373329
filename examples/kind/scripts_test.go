package kind

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// fakeCommands is a directory of fake commands. Each one records its calls and runs a script.
type fakeCommands struct {
	*testing.T
	dir string
}

func newFakeCommands(t *testing.T) *fakeCommands { return &fakeCommands{t, t.TempDir()} }

func (s *fakeCommands) add(command, script string) {
	s.Helper()
	text := "#!/bin/sh\necho \"${0##*/} $*\" >>\"${0%/*}/calls\"\n" + script + "\n"
	if err := os.WriteFile(filepath.Join(s.dir, command), []byte(text), 0o700); err != nil {
		s.Fatal(err)
	}
}

// link adds system commands.
func (s *fakeCommands) link(commands ...string) {
	s.Helper()
	for _, command := range commands {
		path, err := exec.LookPath(command)
		if err != nil {
			s.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(s.dir, command)); err != nil {
			s.Fatal(err)
		}
	}
}

func (s *fakeCommands) calls() []string {
	data, err := os.ReadFile(filepath.Join(s.dir, "calls"))
	if err != nil {
		return nil // no calls
	}
	return strings.Split(strings.TrimSpace(string(data)), "\n")
}

// run runs a command with the given PATH, and returns its output and exit code.
func (s *fakeCommands) run(path string, command ...string) (out string, code int) {
	s.Helper()
	cmd := exec.CommandContext(s.Context(), command[0], command[1:]...)
	cmd.Env = append(os.Environ(), "PATH="+path)
	output, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		s.Fatal(err)
	}
	return string(output), cmd.ProcessState.ExitCode()
}

func TestDemo_ReportsMissingRequirements(t *testing.T) {
	for name, test := range map[string]struct {
		installed map[string]string
		want      string
	}{
		"docker": {nil, "docker is not installed. make demo runs the same demonstration without it"},
		"the docker daemon": {map[string]string{"docker": "exit 1", "kubectl": "", "kind": ""},
			"docker is installed, but its daemon does not answer"},
		"an unused cluster name": {
			map[string]string{"docker": "", "kubectl": "", "kind": "echo dynamic-controller-demo"},
			"the kind cluster dynamic-controller-demo exists",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFakeCommands(t)
			s.link("make", "dirname", "grep", "go", "awk")
			for command, script := range test.installed {
				s.add(command, script)
			}
			out, code := s.run(s.dir, filepath.Join(s.dir, "make"), "-C", root, "kind-demo")
			if code == 0 || !strings.Contains(out, "make kind-demo: "+test.want) {
				t.Errorf("got exit code %d and %q, want %q", code, out, test.want)
			}
			for _, call := range s.calls() {
				if strings.Contains(call, "create") || strings.Contains(call, "delete") || strings.Contains(call, "build") {
					t.Errorf("unexpected call: %s", call)
				}
			}
		})
	}
}

// engine is a script for the fake docker that reports the architecture of this machine.
var engine = `case "$1" in version) echo ` + runtime.GOARCH + `;; esac`

func demoPath(s *fakeCommands) string {
	return s.dir + string(filepath.ListSeparator) + os.Getenv("PATH")
}

// TestDemo_DeletesTheClusterOnFailure runs the whole script. The demonstration fails because the cluster that stands in
// for the kind cluster has no Pods.
func TestDemo_DeletesTheClusterOnFailure(t *testing.T) {
	kubeconfig := newAPI(t).cluster.Kubeconfig()
	s := newFakeCommands(t)
	s.add("docker", engine)
	s.add("kubectl", "")
	s.add("kind", `case "$1" in create) cp "`+kubeconfig+`" "$KUBECONFIG";; esac`)
	transcript := filepath.Join(t.TempDir(), "transcript")
	t.Setenv("KIND_DEMO_LOG", transcript)
	out, code := s.run(demoPath(s), "./demo.sh")
	noPods := "0 Pods with app.kubernetes.io/name=dynamic-controller are ready in namespace " + namespace
	if code != 1 || !strings.Contains(out, noPods) {
		t.Errorf("got exit code %d and %q, want %q", code, out, noPods)
	}
	lines := string(read(t, transcript))
	if !strings.Contains(lines, "using the cluster from KUBECONFIG=") || !strings.Contains(out, lines) {
		t.Errorf("the transcript is %q, the output is %q", lines, out)
	}
	want := []string{
		"docker info",
		"kind get clusters",
		"docker version --format {{.Server.Arch}}",
		"docker build --quiet --tag dynamic-controller:kind --file examples/kind/Dockerfile bin/kind/image",
		"docker manifest inspect kindest/node:v1.34.0",
		"docker run --rm --privileged --user 0 dynamic-controller:kind --help",
		"kind create cluster --name dynamic-controller-demo --config examples/kind/cluster.yaml --wait 3m",
		"kind load docker-image dynamic-controller:kind --name dynamic-controller-demo",
		"kubectl wait --for=condition=Ready nodes --all --timeout 3m",
		"kubectl apply --server-side --kustomize examples/kind",
		"kubectl apply --server-side --filename examples/kind/demo-role.yaml",
		"kubectl --namespace " + namespace + " rollout status deployment/dynamic-controller --timeout 3m",
		"kubectl --namespace " + namespace + " get pods,leases,events",
		"kind delete cluster --name dynamic-controller-demo",
		"docker network rm dynamic-controller-demo",
	}
	if got := s.calls(); !slices.Equal(got, want) {
		t.Errorf("got the calls\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}

	s = newFakeCommands(t)
	s.add("docker", engine)
	s.add("kubectl", "")
	s.add("kind", `case "$1" in create) exit 7;; esac`)
	if _, code := s.run(demoPath(s), "./demo.sh"); code != 7 {
		t.Errorf("exit code %d", code)
	}
	if got := s.calls(); !slices.Contains(got, "kind delete cluster --name dynamic-controller-demo") {
		t.Errorf("the cluster was not deleted: %q", got)
	}
}

func TestDemo_UsesTheConfiguredNodeImage(t *testing.T) {
	t.Setenv("KIND_NODE_IMAGE", "example.com/node:v1")
	s := newFakeCommands(t)
	s.add("docker", engine+`; [ "$1" != manifest ]`)
	s.add("kubectl", "")
	s.add("kind", `case "$1" in create) exit 7;; esac`)
	s.run(demoPath(s), "./demo.sh")
	want := "kind create cluster --name dynamic-controller-demo --config examples/kind/cluster.yaml --wait 3m " +
		"--image example.com/node:v1"
	if got := s.calls(); !slices.Contains(got, want) {
		t.Errorf("got the calls\n%s\nwant %s", strings.Join(got, "\n"), want)
	}
}

// TestDemo_StartsNodesWithoutPrivileges uses an Engine that refuses --privileged.
func TestDemo_StartsNodesWithoutPrivileges(t *testing.T) {
	s := newFakeCommands(t)
	s.add("docker", engine+`; case "$*" in *--privileged*) exit 125;; esac`)
	s.add("kubectl", "")
	s.add("kind", `case "$1" in create) docker run --name node --privileged image && exit 7;; esac`)
	out, code := s.run(demoPath(s), "./demo.sh")
	if code != 7 || !strings.Contains(out, "cannot run privileged containers") {
		t.Errorf("got exit code %d and %q", code, out)
	}
	if !slices.ContainsFunc(s.calls(), func(call string) bool {
		return strings.HasPrefix(call, "docker run --name node --security-opt seccomp=unconfined") &&
			strings.HasSuffix(call, " image")
	}) {
		t.Errorf("got the calls\n%s", strings.Join(s.calls(), "\n"))
	}
}

func TestKillPod_KillsTheProcess(t *testing.T) {
	s := newFakeCommands(t)
	s.add("kubectl", "echo kind-worker")
	// The fake docker exec runs the command on this machine, and the fake crictl returns the process ID.
	victim := exec.CommandContext(t.Context(), "sleep", "1000")
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	s.add("docker", `shift 2; exec "$@"`)
	s.add("crictl", `case "$1" in ps) echo abc;; inspect) echo `+strconv.Itoa(victim.Process.Pid)+`;; esac`)
	if out, code := s.run(demoPath(s), "./kill-pod", "some", "pod-1"); code != 0 {
		t.Errorf("exit code %d: %s", code, out)
	}
	if err := victim.Wait(); err == nil || err.Error() != "signal: killed" {
		t.Errorf("the process exited with %v", err)
	}
	got := s.calls()
	want := []string{
		"kubectl --namespace some get pod pod-1 --output jsonpath={.spec.nodeName}",
		"crictl ps --quiet --label io.kubernetes.pod.namespace=some --label io.kubernetes.pod.name=pod-1",
		"crictl inspect --output go-template --template {{.info.pid}} abc",
	}
	for _, call := range want {
		if !slices.Contains(got, call) {
			t.Errorf("no call %q among %q", call, got)
		}
	}
}
