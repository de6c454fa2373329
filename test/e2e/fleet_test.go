package e2e

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/dynamic-controller/engine/test/cluster"
	"github.com/dynamic-controller/engine/test/e2e/internal/history"
	"github.com/dynamic-controller/engine/test/e2e/internal/tcpproxy"
)

const (
	leaseName   = "e2e"
	objectCount = 8
)

// rules are derived from the options of the replicas.
var rules = history.Rules{
	Certain:   leaseDuration - leaseDuration/10,
	AfterTake: retryPeriod + max(renewDeadline/2, time.Second),
	Slack:     200 * time.Millisecond,
}

// fleet is a set of three replicas and their shared resources.
type fleet struct {
	*testing.T
	command   func(*member) *exec.Cmd // Returns the command of a member's next process.
	cluster   *cluster.Cluster
	client    dynamic.Interface
	clients   kubernetes.Interface
	namespace string
	dir       string
	log       *history.Log
	reader    *history.Reader
	members   []*member
	load      *load           // Nil for replicas of the platform.
	webhook   *tcpproxy.Proxy // Between the API server and the webhook. Nil for replicas of the engine.
}

// member is one replica. Each time it is restarted, it runs as a new process.
type member struct {
	name    string
	proxy   *tcpproxy.Proxy
	started int
	process *process
	paused  bool
}

// processName returns the name that the member's current process has in the log.
func (m *member) processName() string { return fmt.Sprintf("%s.%d", m.name, m.started) }

// newFleet starts replicas of the engine and begins to change objects.
func newFleet(t *testing.T) *fleet {
	t.Helper()
	f := newMembers(t)
	defineOnce(t, f.cluster.Config())
	f.command = f.workerCommand
	for _, m := range f.members {
		_, err := f.clients.CoreV1().ConfigMaps(f.namespace).Create(t.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: m.name}}, metav1.CreateOptions{})
		f.noError(err)
	}
	for n := range objectCount {
		f.createObject(fmt.Sprintf("widget-%d", n))
	}
	f.load = f.newLoad()
	f.observe()
	t.Cleanup(f.reportLogs)
	f.startAll()
	f.load.start()
	return f
}

// newMembers returns a fleet with a namespace of its own, whose replicas have not been started.
func newMembers(t *testing.T) *fleet {
	t.Helper()
	c := shared.Cluster(t)
	config := c.Config()
	f := &fleet{T: t, cluster: c, namespace: "e2e-" + utilrand.String(8), dir: t.ArtifactDir()}
	var err error
	f.client, err = dynamic.NewForConfig(config)
	f.noError(err)
	f.clients, err = kubernetes.NewForConfig(config)
	f.noError(err)
	f.createNamespace(f.namespace)
	f.log, err = history.Open(f.logFile(), "test")
	f.noError(err)
	t.Cleanup(func() { _ = f.log.Close() })
	f.reader = history.NewReader(f.logFile())

	server, err := url.Parse(config.Host)
	f.noError(err)
	for _, name := range []string{"a", "b", "c"} {
		proxy, err := tcpproxy.Listen(server.Host)
		f.noError(err)
		f.members = append(f.members, &member{name: name, proxy: proxy})
		t.Cleanup(proxy.Close)
	}
	return f
}

func (f *fleet) createNamespace(name string) {
	f.Helper()
	_, err := f.clients.CoreV1().Namespaces().Create(f.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	f.noError(err)
}

func (f *fleet) logFile() string { return filepath.Join(f.dir, "history") }

func (f *fleet) noError(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

func (f *fleet) createObject(name string) {
	f.Helper()
	object := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"n": int64(0)}}}
	object.SetAPIVersion(widgets.GroupVersion().String())
	object.SetKind("Widget")
	object.SetName(name)
	// Shortly after a CRD is established, the API server delays a POST by two seconds, but not a PATCH.
	_, err := f.client.Resource(widgets).Namespace(f.namespace).Apply(f.Context(), name, object,
		metav1.ApplyOptions{FieldManager: "test"})
	f.noError(err)
}

func (f *fleet) startAll() {
	f.Helper()
	for _, m := range f.members {
		f.start(m)
	}
}

// start starts the next process of a member.
func (f *fleet) start(m *member) {
	f.Helper()
	m.started++
	m.process = startProcess(f.T, f.command(m), filepath.Join(f.dir, m.name+".log"))
	f.Cleanup(m.process.kill)
}

// workerCommand returns the command of a replica of the engine, which is another process of the test binary.
func (f *fleet) workerCommand(m *member) *exec.Cmd {
	f.Helper()
	spec, err := json.Marshal(job{
		Process: m.processName(), Member: m.name, Kubeconfig: f.cluster.Kubeconfig(), Server: m.proxy.Addr(),
		Log: f.logFile(), Namespace: f.namespace, Lease: leaseName,
	})
	f.noError(err)
	binary, err := os.Executable()
	f.noError(err)
	cmd := exec.Command(binary)
	cmd.Env = append(os.Environ(), workerEnv+"="+string(spec))
	return cmd
}

// reportLogs reports the path and the last lines of the logs if the test has failed.
func (f *fleet) reportLogs() {
	if !f.Failed() {
		return
	}
	f.Logf("the logs are in %s (preserved with -artifacts)", f.dir)
	for _, m := range f.members {
		const maxBytes = 4000
		data, _ := os.ReadFile(filepath.Join(f.dir, m.name+".log"))
		f.Logf("the end of the log of %s:\n%s", m.name, data[max(0, len(data)-maxBytes):])
	}
}

// wait waits for the duration of a fault.
func (f *fleet) wait(d time.Duration) {
	select {
	case <-time.After(d):
	case <-f.Context().Done():
	}
}

// other returns the member after m.
func (f *fleet) other(m *member) *member {
	return f.members[(slices.Index(f.members, m)+1)%len(f.members)]
}

// finish terminates the replicas with SIGTERM, one after another. It always terminates the current leader next, so that
// every replica must lead once more. It then checks the log.
func (f *fleet) finish() history.Report {
	f.Helper()
	f.settle()
	for range f.members {
		f.terminate(f.awaitLeader(0))
	}
	report := history.Check(f.events(), rules)
	const maxViolations = 10
	for i, v := range report.Violations {
		if i == maxViolations {
			f.Errorf("%d more violations", len(report.Violations)-maxViolations)
			break
		}
		f.Error(v)
	}
	f.Log(report)
	return report
}

// terminate sends SIGTERM to the process of a member and waits until it has exited.
func (f *fleet) terminate(m *member) {
	f.Helper()
	m.process.signal(f.T, syscall.SIGTERM)
	select {
	case <-m.process.exited:
		if m.process.err != nil {
			f.Errorf("%s exited with an error: %v", m.processName(), m.process.err)
		}
	case <-time.After(timeout):
		f.Fatalf("%s did not exit", m.processName())
	}
}

// recordFault logs a fault and returns the time of the log entry.
func (f *fleet) recordFault(format string, args ...any) history.Time {
	e := history.Event{At: history.Now(), Kind: history.Fault, Error: fmt.Sprintf(format, args...)}
	f.log.Add(e)
	f.Log(strings.TrimSpace(e.Error))
	return e.At
}
