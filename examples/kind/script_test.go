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

// standIns is a directory of commands that stand in for others: each notes how it was called, and does as the script says.
type standIns struct {
	*testing.T
	dir string
}

func newStandIns(t *testing.T) *standIns { return &standIns{t, t.TempDir()} }

func (s *standIns) add(command, script string) {
	s.Helper()
	text := "#!/bin/sh\necho \"${0##*/} $*\" >>\"${0%/*}/calls\"\n" + script + "\n"
	if err := os.WriteFile(filepath.Join(s.dir, command), []byte(text), 0o700); err != nil {
		s.Fatal(err)
	}
}

// link makes a command available as it is.
func (s *standIns) link(commands ...string) {
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

func (s *standIns) calls() []string {
	data, err := os.ReadFile(filepath.Join(s.dir, "calls"))
	if err != nil {
		return nil // none
	}
	return strings.Split(strings.TrimSpace(string(data)), "\n")
}

// run runs the command with nothing else in its path but what is added.
func (s *standIns) run(path string, command ...string) (out string, code int) {
	s.Helper()
	cmd := exec.CommandContext(s.Context(), command[0], command[1:]...)
	cmd.Env = append(os.Environ(), "PATH="+path)
	said, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		s.Fatal(err)
	}
	return string(said), cmd.ProcessState.ExitCode()
}

func TestDemoReportsWhatIsMissing(t *testing.T) {
	for name, test := range map[string]struct {
		installed map[string]string
		want      string
	}{
		"docker": {nil, "docker is not installed. make demo tells the same story without it"},
		"docker's daemon": {map[string]string{"docker": "exit 1", "kubectl": "", "kind": ""},
			"docker is installed, but its daemon does not answer"},
		"nothing, and the cluster exists": {map[string]string{"docker": "", "kubectl": "", "kind": "echo dynamic-controller-demo"},
			"the kind cluster dynamic-controller-demo exists"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStandIns(t)
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
					t.Errorf("it changed something: %s", call)
				}
			}
		})
	}
}

// engine is a stand-in for docker on this machine.
var engine = `case "$1" in version) echo ` + runtime.GOARCH + `;; esac`

func demoPath(s *standIns) string { return s.dir + string(filepath.ListSeparator) + os.Getenv("PATH") }

// TestDemoDeletesTheClusterOnFailure runs all of the script, up to the demonstration, which finds no Pods on the cluster
// that stands in for kind's.
func TestDemoDeletesTheClusterOnFailure(t *testing.T) {
	kubeconfig := newAPI(t).cluster.Kubeconfig()
	s := newStandIns(t)
	s.add("docker", engine)
	s.add("kubectl", "")
	s.add("kind", `case "$1" in create) cp "`+kubeconfig+`" "$KUBECONFIG";; esac`)
	transcript := filepath.Join(t.TempDir(), "transcript")
	t.Setenv("KIND_DEMO_LOG", transcript)
	out, code := s.run(demoPath(s), "./demo.sh")
	if found := "0 Pods with app.kubernetes.io/name=dynamic-controller are ready in namespace " + namespace; code != 1 || !strings.Contains(out, found) {
		t.Errorf("got exit code %d and %q, want %q", code, out, found)
	}
	if lines := string(read(t, transcript)); !strings.Contains(lines, "taking the cluster of KUBECONFIG=") || !strings.Contains(out, lines) {
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
		"kubectl --namespace " + namespace + " rollout status deployment/dynamic-controller --timeout 3m",
		"kubectl --namespace " + namespace + " get pods,leases,events",
		"kind delete cluster --name dynamic-controller-demo",
		"docker network rm dynamic-controller-demo",
	}
	if got := s.calls(); !slices.Equal(got, want) {
		t.Errorf("got the calls\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}

	s = newStandIns(t)
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

func TestDemoTakesTheNodeImageThatIsSet(t *testing.T) {
	t.Setenv("KIND_NODE_IMAGE", "example.com/node:v1")
	s := newStandIns(t)
	s.add("docker", engine+`; [ "$1" != manifest ]`)
	s.add("kubectl", "")
	s.add("kind", `case "$1" in create) exit 7;; esac`)
	s.run(demoPath(s), "./demo.sh")
	want := "kind create cluster --name dynamic-controller-demo --config examples/kind/cluster.yaml --wait 3m --image example.com/node:v1"
	if got := s.calls(); !slices.Contains(got, want) {
		t.Errorf("got the calls\n%s\nwant %s", strings.Join(got, "\n"), want)
	}
}

// TestDemoOnAnEngineWithoutPrivilegedContainers has kind start a node with an Engine that refuses --privileged.
func TestDemoOnAnEngineWithoutPrivilegedContainers(t *testing.T) {
	s := newStandIns(t)
	s.add("docker", engine+`; case "$*" in *--privileged*) exit 125;; esac`)
	s.add("kubectl", "")
	s.add("kind", `case "$1" in create) docker run --name node --privileged image && exit 7;; esac`)
	out, code := s.run(demoPath(s), "./demo.sh")
	if code != 7 || !strings.Contains(out, "cannot run privileged containers") {
		t.Errorf("got exit code %d and %q", code, out)
	}
	if !slices.ContainsFunc(s.calls(), func(call string) bool {
		return strings.HasPrefix(call, "docker run --name node --security-opt seccomp=unconfined") && strings.HasSuffix(call, " image")
	}) {
		t.Errorf("got the calls\n%s", strings.Join(s.calls(), "\n"))
	}
}

func TestAPodIsKilledOnItsNode(t *testing.T) {
	s := newStandIns(t)
	s.add("kubectl", "echo kind-worker")
	// The node: docker exec NODE COMMAND... runs the command here, where crictl finds the container's process.
	victim := exec.CommandContext(t.Context(), "sleep", "1000")
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	s.add("docker", `shift 2; exec "$@"`)
	s.add("crictl", `case "$1" in ps) echo abc;; inspect) echo `+strconv.Itoa(victim.Process.Pid)+`;; esac`)
	if out, code := s.run(s.dir+string(filepath.ListSeparator)+os.Getenv("PATH"), "./kill-pod", "some", "pod-1"); code != 0 {
		t.Errorf("exit code %d: %s", code, out)
	}
	if err := victim.Wait(); err == nil || err.Error() != "signal: killed" {
		t.Errorf("the process ended with %v", err)
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
