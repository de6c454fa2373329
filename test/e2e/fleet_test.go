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
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/dynamic-controller/engine/test/cluster"
	"github.com/dynamic-controller/engine/test/e2e/internal/history"
	"github.com/dynamic-controller/engine/test/e2e/internal/tcpproxy"
)

const (
	leaseName   = "e2e"
	objectCount = 8 // The number of objects of a single leader.
)

// takeover is the time within which a candidate takes over from a leader that has crashed.
const takeover = leaseDuration + 5*retryPeriod

// rules are derived from the options of the replicas.
var rules = history.Rules{
	Certain:      leaseDuration - leaseDuration/10,
	AfterTake:    retryPeriod + max(renewDeadline/2, time.Second),
	Slack:        200 * time.Millisecond,
	Takeover:     takeover,
	ReadInterval: 2 * retryPeriod,
	Assigned:     2*takeover + retryPeriod + coldList,
	Respected:    map[string]time.Duration{"": leaseDuration},
}

// serverDelay is the time within which an API server observes a change of a lease on a busy machine. An idle one needs
// some milliseconds.
const serverDelay = time.Second

// coldList is the time that a replica needs to list the types of a shard.
const coldList = 2 * time.Second

// fleet is a set of replicas and their shared resources.
type fleet struct {
	*testing.T
	command   func(*member) *exec.Cmd // Returns the command of a member's next process.
	rules     history.Rules
	shards    int                           // Zero for a single leader.
	types     []schema.GroupVersionResource // The served types.
	cluster   *cluster.Cluster
	client    dynamic.Interface
	clients   kubernetes.Interface
	namespace string
	dir       string
	log       *history.Log
	reader    *history.Reader
	members   []*member
	spare     *member         // Started only by faults. Nil without shards.
	load      *load           // Nil for replicas of the platform.
	webhook   *tcpproxy.Proxy // Between the API server and the webhook. Nil for replicas of the engine.
	username  string          // The API server fences the writes of this user. Empty without a fence on the server.
}

// member is one replica. Each time it is restarted, it runs as a new process.
type member struct {
	name    string
	proxy   *tcpproxy.Proxy
	shards  int // The number of shards that the member is configured for.
	started int
	process *process // Nil if the member has not been started.
}

func (m *member) isRunning() bool { return m.process != nil && !m.process.hasExited() }

// processName returns the name that the member's current process has in the log.
func (m *member) processName() string { return fmt.Sprintf("%s.%d", m.name, m.started) }

// newFleet starts three replicas of the engine, of which one leads, and begins to change objects.
func newFleet(t *testing.T) *fleet {
	t.Helper()
	f := newMembers(t, 3)
	defineOnce(t, f.cluster.Config())
	f.types = []schema.GroupVersionResource{widgets}
	f.startChanging(objectCount, 0)
	return f
}

// startChanging starts the replicas of the engine, and begins to change objects. Each type has the given numbers of
// objects that change and that do not.
func (f *fleet) startChanging(changing, constant int) {
	f.Helper()
	f.command = f.workerCommand
	if *onServer {
		f.fenceOnServer()
	}
	for _, m := range f.all() {
		_, err := f.clients.CoreV1().ConfigMaps(f.namespace).Create(f.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: m.name}}, metav1.CreateOptions{})
		f.noError(err)
	}
	f.load = f.newLoad()
	for n := range changing + constant {
		for _, gvr := range f.types {
			o := object{gvr, fmt.Sprintf("%s-%d", gvr.Resource, n)}
			f.createObject(o, 0)
			f.load.add(o, n < changing)
		}
	}
	f.observe()
	f.Cleanup(f.reportLogs)
	f.startAll()
	f.load.start()
}

// newMembers returns a fleet with a namespace of its own, whose replicas have not been started.
func newMembers(t *testing.T, count int) *fleet {
	t.Helper()
	c := shared.Cluster(t)
	config := c.Config()
	f := &fleet{T: t, cluster: c, rules: rules, namespace: "e2e-" + utilrand.String(8), dir: t.ArtifactDir()}
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
	for _, name := range strings.Split("abcde", "")[:count] {
		f.members = append(f.members, f.newMember(name))
	}
	return f
}

func (f *fleet) newMember(name string) *member {
	f.Helper()
	server, err := url.Parse(f.cluster.Config().Host)
	f.noError(err)
	proxy, err := tcpproxy.Listen(server.Host)
	f.noError(err)
	f.Cleanup(proxy.Close)
	return &member{name: name, proxy: proxy}
}

// all returns all members, including the spare one.
func (f *fleet) all() []*member {
	if f.spare == nil {
		return f.members
	}
	return append(slices.Clone(f.members), f.spare)
}

// leases returns the leases that are elected with. The first one is that of the single leader, or of the fleet.
func (f *fleet) leases() []string {
	names := []string{leaseName}
	for i := range f.shards {
		names = append(names, shardLease(leaseName, i))
	}
	return names
}

// engineLeases returns the leases whose leaders reconcile objects.
func (f *fleet) engineLeases() []string {
	if f.shards == 0 {
		return f.leases()
	}
	return f.leases()[1:]
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

// object is an object of a served type. The names of all objects differ.
type object struct {
	gvr  schema.GroupVersionResource
	name string
}

// createObject creates an object with the number of its last change.
func (f *fleet) createObject(o object, n int64) {
	f.Helper()
	created := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"n": n}}}
	created.SetAPIVersion(o.gvr.GroupVersion().String())
	created.SetKind(kindOf(o.gvr))
	created.SetName(o.name)
	// Shortly after a CRD is established, the API server delays a POST by two seconds, but not a PATCH.
	_, err := f.client.Resource(o.gvr).Namespace(f.namespace).Apply(f.Context(), o.name, created,
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
		Log: f.logFile(), Namespace: f.namespace, Lease: leaseName, Shards: m.shards, Types: f.types, Traps: f.dir,
		Username: f.username,
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
	for _, m := range f.all() {
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
// every replica must lead once more. With shards, it is the leader of the fleet. It then checks the log.
func (f *fleet) finish() history.Report {
	f.Helper()
	f.settle()
	for range f.members {
		f.awaitLeaders()
		f.terminate(f.awaitLeader(leaseName, 0))
	}
	if f.shards > 0 {
		f.checkLeasesLeft()
	}
	report := history.Check(f.events(), f.rules)
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
