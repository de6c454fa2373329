package integration

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/transport"

	"github.com/dynamic-controller/engine/handlers"
	"github.com/dynamic-controller/engine/test/apiproxy"
)

// lifetime is one parent's, from its creation to its end, in the hands of processes.
type lifetime struct {
	*setting
	token string // whose rights they have
	far   string // the namespace of the child that is in another one, which has the name of the parent's namespace

	mu      sync.Mutex // guards what follows, which is what the processes did together
	bucket  bool
	unnamed int // how many children without names were made
}

// account is what has the rights that the parts say they need, and those to watch, and no others, until the test ends.
func (s *setting) account() (token string) {
	s.Helper()
	name := "platform-" + s.namespace
	rule := func(group, resource string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
	}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{
		rule(s.parents.Group, s.parents.Resource, "get", "patch", "list", "watch"),
		rule(s.parents.Group, s.parents.Resource+"/status", "patch"),
		rule(s.gadgets.Group, s.gadgets.Resource, "get", "list", "watch", "create", "patch", "delete"),
		rule("", "configmaps", "get", "list", "watch", "create", "patch", "delete"),
	}}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: s.namespace, Name: name}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
	}
	rbac, accounts := s.clients.RbacV1(), s.clients.CoreV1().ServiceAccounts(s.namespace)
	_, err1 := rbac.ClusterRoles().Create(s.Context(), role, metav1.CreateOptions{})
	_, err2 := rbac.ClusterRoleBindings().Create(s.Context(), binding, metav1.CreateOptions{})
	_, err3 := accounts.Create(s.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	request, err4 := accounts.CreateToken(s.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	s.noError(errors.Join(err1, err2, err3, err4))
	s.Cleanup(func() {
		s.noError(rbac.ClusterRoleBindings().Delete(context.Background(), name, metav1.DeleteOptions{}))
		s.noError(rbac.ClusterRoles().Delete(context.Background(), name, metav1.DeleteOptions{}))
	})
	return request.Status.Token
}

// lifetimeIn is one in a namespace of its own, for the harness's test.
func (s *setting) lifetimeIn(h *harness, token string) *lifetime {
	h.Helper()
	own, mine := *h, *s
	own.namespace = own.newNamespace()
	mine.harness = &own
	return &lifetime{setting: &mine, token: token, far: s.namespace}
}

// world is what processes see through: it counts what they make, and has the bucket.
func (l *lifetime) world(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.URL.Path == bucketPath {
			return l.askBucket(r), nil
		}
		answer, err := next.RoundTrip(r)
		if err == nil && r.Method == http.MethodPost && answer.StatusCode == http.StatusCreated {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.unnamed++
		}
		return answer, err
	})
}

func (l *lifetime) askBucket(r *http.Request) *http.Response {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch r.Method {
	case http.MethodPut:
		l.bucket = true
	case http.MethodDelete:
		l.bucket = false
	}
	status := http.StatusOK
	if r.Method == http.MethodGet && !l.bucket {
		status = http.StatusNotFound
	}
	return &http.Response{StatusCode: status, Request: r, Header: http.Header{}, Body: http.NoBody}
}

// process is a reconciler in a process of its own, behind a proxy of its own.
type process struct {
	*lifetime
	cmd   *exec.Cmd
	stdin io.WriteCloser
	proxy *apiproxy.Proxy
	trap  *apiproxy.Trap
	shown atomic.Value // the resourceVersion of the parent in its cache
	log   bytes.Buffer
	ended chan struct{} // closed when it was reaped, and the log is whole
}

// start starts a process that stands by, until the test ends.
func (l *lifetime) start(meddlers ...transport.WrapperFunc) *process {
	l.Helper()
	p := &process{lifetime: l, ended: make(chan struct{})}
	p.trap = apiproxy.NewTrap(p.kill)
	p.proxy = must(apiproxy.Start(l.config, slices.Concat([]transport.WrapperFunc{p.trap.Wrap, l.world}, meddlers)...))
	spec := must(json.Marshal(job{
		Host: p.proxy.URL(), Token: l.token, CAData: p.proxy.CAData(),
		Parents: l.parents, Gadgets: l.gadgets, Namespace: l.namespace, Far: l.far,
	}))
	p.cmd = exec.Command(must(os.Executable()))
	l.Cleanup(p.end)
	p.cmd.Env = append(os.Environ(), jobEnv+"="+string(spec))
	p.cmd.Stderr = &p.log
	out := must(p.cmd.StdoutPipe())
	p.stdin = must(p.cmd.StdinPipe()) // it closes with the test, however that ends, and the process ends with it
	l.noError(p.cmd.Start())
	go func() {
		defer close(p.ended)
		for words := bufio.NewScanner(out); words.Scan(); {
			if version, is := strings.CutPrefix(words.Text(), saysShown); is {
				p.shown.Store(version)
			}
		}
		_ = p.cmd.Wait() // it was killed
	}()
	return p
}

// lead lets it reconcile, at once or when it is warm.
func (p *process) lead() { _, _ = fmt.Fprintln(p.stdin, leadNow) } // it may have gone

// awaitCache waits until the process's cache shows the parent as it is.
func (p *process) awaitCache() {
	p.Helper()
	p.eventually("the cache shows the parent", func() error {
		p.mustLive()
		version := ""
		if parent := p.get(p.parents, p.namespace, "p"); parent != nil {
			version = parent.GetResourceVersion()
		}
		if shown := p.shown.Load(); shown != version {
			return fmt.Errorf("it shows %v, and not %q", shown, version)
		}
		return nil
	})
}

// kill returns when the process has gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have gone
	<-p.ended
}

// end is kill, and tells the log of a test that failed.
func (p *process) end() {
	defer p.proxy.Close()
	if p.cmd.Process == nil {
		return // it could not be started
	}
	p.kill()
	if p.Failed() {
		p.Logf("log of process %d:\n%s", p.cmd.Process.Pid, p.log.String())
	}
}

func (p *process) isDead() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// mustLive fails the test if the process died of anything but its trap.
func (p *process) mustLive() {
	p.Helper()
	if p.isDead() && p.trap.Caught() == nil {
		p.Fatalf("the process has ended: %s", p.log.String())
	}
}

// phase is what a user does, and what there is when all has been done for it.
type phase struct {
	begin func()
	end   string
}

func (l *lifetime) phases() []phase {
	put := func(version string) func() {
		return func() {
			l.put(l.parents, newObject(l.parents, "Platform", l.namespace, "p", map[string]any{"version": version}))
		}
	}
	const held = "held by [" + platformName + "/bucket " + platformName + "/children]"
	return []phase{
		{put("first"), fmt.Sprintf("a, far, g, 2 unnamed, bucket, parent of ConfigMap=v1/configmaps,Gadget.%s=v1/gadgets %s, Ready=True", l.gadgets.Group, held)},
		{put("second"), fmt.Sprintf("b, far, 1 unnamed, bucket, parent of ConfigMap=v1/configmaps %s, Ready=True", held)},
		{func() { l.noError(l.in(l.parents, l.namespace).Delete(l.Context(), "p", metav1.DeleteOptions{})) }, ""},
	}
}

// state is what there is of the parent in the API server and beyond.
func (l *lifetime) state() string {
	l.Helper()
	var have []string
	add := func(what string, there bool) {
		if there {
			have = append(have, what)
		}
	}
	add("a", l.get(configMaps, l.namespace, "a") != nil)
	add("b", l.get(configMaps, l.namespace, "b") != nil)
	add("far", l.get(configMaps, l.far, l.namespace) != nil)
	add("g", l.get(l.gadgets, l.namespace, "g") != nil)
	found, err := handlers.Live(l.client).List(context.WithoutCancel(l.Context()), configMaps, l.namespace, unnamed)
	l.noError(err)
	add(fmt.Sprintf("%d unnamed", len(found)), len(found) > 0)
	l.mu.Lock()
	add("bucket", l.bucket)
	l.mu.Unlock()
	if told := l.told(); told != "" {
		have = append(have, told)
	}
	return strings.Join(have, ", ")
}

// told is what the parent says.
func (l *lifetime) told() string {
	l.Helper()
	parent := l.get(l.parents, l.namespace, "p")
	if parent == nil {
		return ""
	}
	told := fmt.Sprintf("parent of %s held by %v", parent.GetAnnotations()[platformName+"/inventory"], parent.GetFinalizers())
	conditions, _, _ := unstructured.NestedSlice(parent.Object, "status", "conditions")
	for _, condition := range conditions {
		condition := condition.(map[string]any)
		if condition["observedGeneration"] == parent.GetGeneration() {
			told += fmt.Sprintf(", %s=%s", condition["type"], condition["status"])
		}
	}
	return told
}

// await waits until all has been done for the phase, which is asked for all the time.
func (l *lifetime) await(what string, current func() phase) {
	l.Helper()
	const pace = 20 * time.Millisecond // all this is asked of the API server that the processes use
	tick := time.NewTicker(pace)
	defer tick.Stop()
	l.eventually(what, func() error {
		<-tick.C
		p := current()
		if told := l.told(); !strings.HasSuffix(p.end, told) || told == "" && p.end != "" {
			return fmt.Errorf("it is a %s; and not: %s", told, p.end)
		}
		if have := l.state(); have != p.end {
			return fmt.Errorf("there is: %s; and not: %s", have, p.end)
		}
		return nil
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unnamed > mostUnnamed {
		l.Errorf("%s: %d children without names were made, and never more than %d wanted", what, l.unnamed, mostUnnamed)
	}
}

const mostUnnamed = 2
