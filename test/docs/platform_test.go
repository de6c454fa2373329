package docs

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"
)

const platformNamespace, platformAccount = "dynamic-controller-system", "dynamic-controller"

const applyKustomization = "kubectl apply --server-side -k install/kustomize"

// startPlatform installs the platform as docs/install.md describes, and runs one replica outside the cluster until the
// test ends. It returns the administrator's kubeconfig.
func startPlatform(t *testing.T) (kubeconfig string) {
	t.Helper()
	kubeconfig = shared.Cluster(t).Kubeconfig()
	newUser(t, root, kubeconfig).run(command{text: applyKustomization})
	runPlatform(t, kubeconfig)
	return kubeconfig
}

// runPlatform runs one replica of the installed platform outside the cluster until the test ends. It returns when the
// replica leads and has created the Blueprint CustomResourceDefinition.
func runPlatform(t *testing.T, kubeconfig string) {
	t.Helper()
	admin := newUser(t, root, kubeconfig)
	token, err := admin.sh("kubectl create token " + platformAccount + " -n " + platformNamespace)
	if err != nil {
		t.Fatal(err)
	}
	r := runReplica(t, writeKubeconfig(t, kubeconfig, strings.TrimSpace(token)))
	select {
	case <-r.leading:
	case <-r.exited:
		t.Fatal("the platform has exited")
	case <-time.After(timeout):
		t.Fatalf("the platform does not lead after %s", timeout)
	}
	admin.run(command{text: "kubectl wait --for=create crd/blueprints.platform.example.com"})
	admin.run(command{text: "kubectl wait --for=condition=Established crd/blueprints.platform.example.com"})
}

// writeKubeconfig writes a kubeconfig for the cluster of another one, with a token.
func writeKubeconfig(t *testing.T, admin, token string) string {
	t.Helper()
	config, err := clientcmd.LoadFromFile(admin)
	if err != nil {
		t.Fatal(err)
	}
	for name := range config.AuthInfos {
		config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: token}
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// replica is a process of the platform.
type replica struct {
	leading chan struct{} // Closed when the replica leads.
	exited  chan struct{}
	err     error // Valid when exited is closed.

	mu  sync.Mutex // Guards the fields below.
	log bytes.Buffer
	led bool // Whether leading is closed.
}

// Write adds to the log.
func (r *replica) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log.Write(p)
	if !r.led && bytes.Contains(r.log.Bytes(), []byte(`"Started leading"`)) {
		r.led = true
		close(r.leading)
	}
	return len(p), nil
}

// runReplica runs the platform with the arguments of its Deployment until the test ends. Its log is shown if the test
// fails.
func runReplica(t *testing.T, kubeconfig string) *replica {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(programs, "dynamic-controller"), deploymentArgs(t)...)
	cmd.Env = append(environment(t, kubeconfig), "POD_NAME=one", "POD_NAMESPACE="+platformNamespace)
	cmd.SysProcAttr = childAttributes()
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = timeout
	r := &replica{leading: make(chan struct{}), exited: make(chan struct{})}
	cmd.Stderr = r
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // The child is killed when this thread exits: see childAttributes.
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			r.err = cmd.Wait()
			close(r.exited)
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		<-r.exited // The context of the test has ended.
		if !cmd.ProcessState.Success() {
			t.Errorf("the platform has ended with %v", r.err)
		}
		if t.Failed() {
			t.Logf("the log of the platform:\n%s", r.log.String())
		}
	})
	return r
}

// deploymentArgs returns the arguments of the Deployment with free local ports.
func deploymentArgs(t *testing.T) []string {
	t.Helper()
	var deployment appsv1.Deployment
	if err := yaml.UnmarshalStrict([]byte(readFile(t, "install/kustomize/deployment.yaml")), &deployment); err != nil {
		t.Fatal(err)
	}
	args := deployment.Spec.Template.Spec.Containers[0].Args
	for i, arg := range args {
		if name, _, ok := strings.Cut(arg, "-bind-address="); ok {
			args[i] = name + "-bind-address=127.0.0.1:0"
		}
	}
	return args
}
