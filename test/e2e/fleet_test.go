package e2e

import (
	"fmt"
	"net/url"
	"os"
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

// rules are what the replicas' options imply.
var rules = history.Rules{
	Certain:   leaseDuration - leaseDuration/10,
	AfterTake: retryPeriod + max(renewDeadline/2, time.Second),
	Slack:     200 * time.Millisecond,
}

// fleet is three replicas and what they share.
type fleet struct {
	*testing.T
	cluster   *cluster.Cluster
	client    dynamic.Interface
	clients   kubernetes.Interface
	namespace string
	dir       string
	log       *history.Log
	reader    *history.Reader
	members   []*member
	load      *load
}

// member is one replica, which may be several processes, one after another.
type member struct {
	name    string
	proxy   *tcpproxy.Proxy
	started int
	process *process
	paused  bool
}

// who is the present process in the log.
func (m *member) who() string { return fmt.Sprintf("%s.%d", m.name, m.started) }

// newFleet starts everything.
func newFleet(t *testing.T) *fleet {
	t.Helper()
	c := shared.Cluster(t)
	config := c.Config()
	define(t, config)
	f := &fleet{T: t, cluster: c, namespace: "e2e-" + utilrand.String(8), dir: t.ArtifactDir()}
	var err error
	f.client, err = dynamic.NewForConfig(config)
	f.noError(err)
	f.clients, err = kubernetes.NewForConfig(config)
	f.noError(err)
	_, err = f.clients.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: f.namespace}}, metav1.CreateOptions{})
	f.noError(err)
	f.log, err = history.Open(f.logFile(), "test")
	f.noError(err)
	t.Cleanup(func() { _ = f.log.Close() })
	f.reader = history.NewReader(f.logFile())

	server, err := url.Parse(config.Host)
	f.noError(err)
	for _, name := range []string{"a", "b", "c"} {
		_, err := f.clients.CoreV1().ConfigMaps(f.namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		f.noError(err)
		proxy, err := tcpproxy.Listen(server.Host)
		f.noError(err)
		m := &member{name: name, proxy: proxy}
		f.members = append(f.members, m)
		t.Cleanup(proxy.Close)
	}
	for n := range objectCount {
		f.createObject(fmt.Sprintf("widget-%d", n))
	}
	f.load = f.newLoad()
	f.observe()
	t.Cleanup(f.tell)
	for _, m := range f.members {
		f.start(m)
	}
	f.load.start()
	return f
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
	// Soon after its type was established a POST waits for two seconds in the server, a PATCH does not.
	_, err := f.client.Resource(widgets).Namespace(f.namespace).Apply(f.Context(), name, object, metav1.ApplyOptions{FieldManager: "test"})
	f.noError(err)
}

// start starts a member's next process.
func (f *fleet) start(m *member) {
	f.Helper()
	m.started++
	m.process = startProcess(f.T, job{
		Who: m.who(), Member: m.name, Kubeconfig: f.cluster.Kubeconfig(), Server: m.proxy.Addr(),
		Log: f.logFile(), Namespace: f.namespace, Lease: leaseName,
	}, filepath.Join(f.dir, m.name+".log"))
	p := m.process
	f.Cleanup(p.kill)
}

// tell says where a test that failed has left its logs, or how they end.
func (f *fleet) tell() {
	if !f.Failed() {
		return
	}
	f.Logf("the logs are in %s (kept with -artifacts)", f.dir)
	for _, m := range f.members {
		const most = 4000
		data, _ := os.ReadFile(filepath.Join(f.dir, m.name+".log"))
		f.Logf("the end of %s's:\n%s", m.name, data[max(0, len(data)-most):])
	}
}

// lasts lets a fault last.
func (f *fleet) lasts(d time.Duration) {
	select {
	case <-time.After(d):
	case <-f.Context().Done():
	}
}

// other is a member that is not the given one.
func (f *fleet) other(m *member) *member {
	return f.members[(slices.Index(f.members, m)+1)%len(f.members)]
}

// finish ends all replicas as a cluster ends Pods, whoever leads first, so that each has to lead once more; and checks what has
// happened.
func (f *fleet) finish() history.Report {
	f.Helper()
	f.settle()
	for range f.members {
		f.terminate(f.awaitLeader(0))
	}
	report := history.Check(f.events(), rules)
	const most = 10
	for i, v := range report.Violations {
		if i == most {
			f.Errorf("and %d more", len(report.Violations)-most)
			break
		}
		f.Error(v)
	}
	f.Log(report)
	return report
}

// terminate ends a member's process as a kubelet does.
func (f *fleet) terminate(m *member) {
	f.Helper()
	m.process.signal(f.T, syscall.SIGTERM)
	select {
	case <-m.process.ended:
		if m.process.err != nil {
			f.Errorf("%s did not end as it should: %v", m.who(), m.process.err)
		}
	case <-time.After(patience):
		f.Fatalf("%s does not end", m.who())
	}
}

// fault notes what is broken.
func (f *fleet) fault(format string, args ...any) history.Time {
	e := history.Event{At: history.Now(), Kind: history.Fault, Error: fmt.Sprintf(format, args...)}
	f.log.Add(e)
	f.Log(strings.TrimSpace(e.Error))
	return e.At
}
