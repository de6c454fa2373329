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

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/transport"

	"github.com/dynamic-controller/engine/handlers"
	"github.com/dynamic-controller/engine/test/apiproxy"
)

// lifecycle is the life of a parent from its creation to its deletion. Separate processes reconcile the parent.
type lifecycle struct {
	*setting
	token string // the bearer token of the processes
	other string // the namespace of the remote child

	mu      sync.Mutex // guards the fields below, which are shared by all processes
	bucket  bool       // whether the bucket exists
	creates int        // the number of children without fixed names that were created
}

// newAccount returns a token for a service account that has the permissions documented for package handlers, plus list
// and watch permissions for the caches. The account is deleted when the test ends.
func (s *setting) newAccount() (token string) {
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
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err3 := accounts.Create(s.Context(), account, metav1.CreateOptions{})
	request, err4 := accounts.CreateToken(s.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	s.noError(errors.Join(err1, err2, err3, err4))
	s.Cleanup(func() {
		s.noError(rbac.ClusterRoleBindings().Delete(context.Background(), name, metav1.DeleteOptions{}))
		s.noError(rbac.ClusterRoles().Delete(context.Background(), name, metav1.DeleteOptions{}))
	})
	return request.Status.Token
}

// newLifecycle returns a lifecycle in a new namespace. The lifecycle reports failures to h's test.
func (s *setting) newLifecycle(h *harness, token string) *lifecycle {
	h.Helper()
	ownHarness, ownSetting := *h, *s
	ownHarness.namespace = ownHarness.newNamespace()
	ownSetting.harness = &ownHarness
	return &lifecycle{setting: &ownSetting, token: token, other: s.namespace}
}

// intercept counts successful create requests and serves the bucket.
func (l *lifecycle) intercept(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.URL.Path == bucketPath {
			return l.serveBucket(r), nil
		}
		response, err := next.RoundTrip(r)
		if err == nil && r.Method == http.MethodPost && response.StatusCode == http.StatusCreated {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.creates++
		}
		return response, err
	})
}

func (l *lifecycle) serveBucket(r *http.Request) *http.Response {
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

// process is a separate process that reconciles the parent. It sends all requests through its own proxy.
type process struct {
	*lifecycle
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	proxy  *apiproxy.Proxy
	trap   *apiproxy.Trap
	cached atomic.Value // the resourceVersion of the parent in the process's cache
	log    bytes.Buffer // complete when exited is closed
	exited chan struct{}
}

// start starts a process as a standby. The process is killed when the test ends.
func (l *lifecycle) start(wrappers ...transport.WrapperFunc) *process {
	l.Helper()
	p := &process{lifecycle: l, exited: make(chan struct{})}
	p.trap = apiproxy.NewTrap(p.kill)
	p.proxy = must(apiproxy.Start(l.config, slices.Concat([]transport.WrapperFunc{p.trap.Wrap, l.intercept}, wrappers)...))
	spec := must(json.Marshal(job{
		Host: p.proxy.URL(), Token: l.token, CAData: p.proxy.CAData(),
		Parents: l.parents, Gadgets: l.gadgets, Namespace: l.namespace, Other: l.other,
	}))
	p.cmd = exec.Command(must(os.Executable()))
	l.Cleanup(p.stop)
	p.cmd.Env = append(os.Environ(), jobEnv+"="+string(spec))
	p.cmd.Stderr = &p.log
	out := must(p.cmd.StdoutPipe())
	p.stdin = must(p.cmd.StdinPipe()) // the process exits when stdin is closed, as when the test binary crashes
	l.noError(p.cmd.Start())
	go func() {
		defer close(p.exited)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if version, ok := strings.CutPrefix(lines.Text(), cachedPrefix); ok {
				p.cached.Store(version)
			}
		}
		_ = p.cmd.Wait() // always an error, because the process is killed
	}()
	return p
}

// lead makes the process start reconciling when its caches have synced.
func (p *process) lead() { _, _ = fmt.Fprintln(p.stdin, leadCommand) } // fails if the process has exited

// awaitCache waits until the process's cache holds the current version of the parent.
func (p *process) awaitCache() {
	p.Helper()
	p.eventually("the cache holds the current version of the parent", func() error {
		p.mustRun()
		version := ""
		if parent := p.get(p.parents, p.namespace, "p"); parent != nil {
			version = parent.GetResourceVersion()
		}
		if cached := p.cached.Load(); cached != version {
			return fmt.Errorf("the cache holds version %v, want %q", cached, version)
		}
		return nil
	})
}

// kill kills the process and waits until it has exited.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // fails if the process has exited
	<-p.exited
}

// stop kills the process and closes its proxy. If the test has failed, it logs the output of the process.
func (p *process) stop() {
	defer p.proxy.Close()
	if p.cmd.Process == nil {
		return // the start failed
	}
	p.kill()
	if p.Failed() {
		p.Logf("log of process %d:\n%s", p.cmd.Process.Pid, p.log.String())
	}
}

func (p *process) hasExited() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// mustRun fails the test if the process has exited without being killed by its trap.
func (p *process) mustRun() {
	p.Helper()
	if p.hasExited() && p.trap.Caught() == nil {
		p.Fatalf("the process exited: %s", p.log.String())
	}
}

// phase is a change that a user makes, and the state that must result from the change.
type phase struct {
	begin func()
	want  string // as returned by state
}

func (l *lifecycle) phases() []phase {
	put := func(version string) func() {
		return func() {
			l.put(l.parents, newObject(l.parents, "Platform", l.namespace, "p", map[string]any{"version": version}))
		}
	}
	remove := func() { l.noError(l.in(l.parents, l.namespace).Delete(l.Context(), "p", metav1.DeleteOptions{})) }
	const finalizers = "finalizers [" + platformName + "/bucket " + platformName + "/children]"
	return []phase{
		{put("first"), fmt.Sprintf("a, remote, g, 2 unnamed, bucket, parent with "+
			"ConfigMap=v1/configmaps@%s,Gadget.%s=v1/gadgets, %s, Ready=True", l.other, l.gadgets.Group, finalizers)},
		{put("second"), fmt.Sprintf("b, remote, 1 unnamed, bucket, parent with "+
			"ConfigMap=v1/configmaps@%s, %s, Ready=True", l.other, finalizers)},
		{remove, ""},
	}
}

// state describes the parent, and the children and the bucket if they exist.
func (l *lifecycle) state() string {
	l.Helper()
	var existing []string
	add := func(name string, exists bool) {
		if exists {
			existing = append(existing, name)
		}
	}
	add("a", l.get(configMaps, l.namespace, "a") != nil)
	add("b", l.get(configMaps, l.namespace, "b") != nil)
	add("remote", l.get(configMaps, l.other, l.namespace) != nil)
	add("g", l.get(l.gadgets, l.namespace, "g") != nil)
	ctx := context.WithoutCancel(l.Context())
	unnamed, err := handlers.Live(l.client).List(ctx, configMaps, l.namespace, unnamedSelector)
	l.noError(err)
	add(fmt.Sprintf("%d unnamed", len(unnamed)), len(unnamed) > 0)
	l.mu.Lock()
	add("bucket", l.bucket)
	l.mu.Unlock()
	if parent := l.parentState(); parent != "" {
		existing = append(existing, parent)
	}
	return strings.Join(existing, ", ")
}

// parentState describes the parent. It returns "" if the parent does not exist.
func (l *lifecycle) parentState() string {
	l.Helper()
	parent := l.get(l.parents, l.namespace, "p")
	if parent == nil {
		return ""
	}
	// After a crash, the last stage of the first version is recorded only if that version was reconciled.
	inventory := strings.NewReplacer(":0", "", ":1", "").Replace(parent.GetAnnotations()[platformName+"/inventory"])
	state := fmt.Sprintf("parent with %s, finalizers %v", inventory, parent.GetFinalizers())
	conditions, _, _ := unstructured.NestedSlice(parent.Object, "status", "conditions")
	for _, condition := range conditions {
		condition := condition.(map[string]any)
		if condition["observedGeneration"] == parent.GetGeneration() {
			state += fmt.Sprintf(", %s=%s", condition["type"], condition["status"])
		}
	}
	return state
}

// await waits until the state is the one that the current phase wants.
func (l *lifecycle) await(condition string, current func() phase) {
	l.Helper()
	l.eventually(condition, func() error {
		p := current()
		if got := l.parentState(); !strings.HasSuffix(p.want, got) || got == "" && p.want != "" {
			return fmt.Errorf("got %q, want %q", got, p.want)
		}
		if got := l.state(); got != p.want {
			return fmt.Errorf("got %q, want %q", got, p.want)
		}
		return nil
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.creates > maxUnnamed {
		l.Errorf("%s: %d children without fixed names were created, want at most %d", condition, l.creates, maxUnnamed)
	}
}

// maxUnnamed is the largest number of children without fixed names that any phase desires.
const maxUnnamed = 2
