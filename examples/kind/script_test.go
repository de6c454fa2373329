package kind

import (
	"os"
	"os/exec"
	"path/filepath"
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

func TestWhatIsMissingIsSaid(t *testing.T) {
	for name, test := range map[string]struct {
		there map[string]string
		want  string
	}{
		"everything": {nil, "these are needed and not found: docker kind kubectl. See https://kind.sigs.k8s.io"},
		"kind":       {map[string]string{"docker": "", "kubectl": ""}, "these are needed and not found: kind. See"},
		"docker's daemon": {map[string]string{"docker": "exit 1", "kubectl": "", "kind": ""},
			"docker is there, but its daemon does not answer"},
		"nothing, and the cluster is there": {map[string]string{"docker": "", "kubectl": "", "kind": "echo dynamic-controller-demo"},
			"there is a kind cluster dynamic-controller-demo already"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStandIns(t)
			s.link("make", "dirname", "grep", "go", "awk")
			for command, script := range test.there {
				s.add(command, script)
			}
			out, code := s.run(s.dir, filepath.Join(s.dir, "make"), "-C", root, "kind-demo")
			if code == 0 || !strings.Contains(out, "make kind-demo: "+test.want) {
				t.Errorf("got exit code %d and %q, want %q", code, out, test.want)
			}
			for _, call := range s.calls() {
				if strings.Contains(call, "create") || strings.Contains(call, "delete") || strings.Contains(call, "build") {
					t.Errorf("it did more than to look: %s", call)
				}
			}
		})
	}
}

// TestTheClusterIsDeletedWhateverHappens runs all of it, up to the demonstration, which finds no Pods on the cluster that
// stands in for kind's.
func TestTheClusterIsDeletedWhateverHappens(t *testing.T) {
	kubeconfig := newAPI(t).cluster.Kubeconfig()
	s := newStandIns(t)
	s.add("docker", "")
	s.add("kubectl", "")
	s.add("kind", `case "$1" in create) cp "`+kubeconfig+`" "$KUBECONFIG";; esac`)
	out, code := s.run(s.dir+string(filepath.ListSeparator)+os.Getenv("PATH"), "./demo.sh")
	if found := "0 Pods with app.kubernetes.io/name=dynamic-controller are ready in namespace " + namespace; code != 1 || !strings.Contains(out, found) {
		t.Errorf("got exit code %d and %q, want %q", code, out, found)
	}
	want := []string{
		"docker info",
		"kind get clusters",
		"docker build --tag dynamic-controller:kind --file examples/kind/Dockerfile .",
		"kind create cluster --name dynamic-controller-demo --config examples/kind/cluster.yaml --wait 3m",
		"kind load docker-image dynamic-controller:kind --name dynamic-controller-demo",
		"kubectl apply --server-side --kustomize examples/kind",
		"kubectl --namespace " + namespace + " rollout status deployment/dynamic-controller --timeout 3m",
		"kubectl --namespace " + namespace + " get pods,leases,events",
		"kind delete cluster --name dynamic-controller-demo",
	}
	if got := s.calls(); !slices.Equal(got, want) {
		t.Errorf("got the calls\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}

	s = newStandIns(t)
	s.add("docker", "")
	s.add("kubectl", "")
	s.add("kind", `case "$1" in create) exit 7;; esac`)
	if _, code := s.run(s.dir+string(filepath.ListSeparator)+os.Getenv("PATH"), "./demo.sh"); code != 7 {
		t.Errorf("exit code %d", code)
	}
	if got := s.calls(); !slices.Contains(got, want[len(want)-1]) {
		t.Errorf("the cluster is left: %q", got)
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
