package main

import (
	"net/http"
	"sync"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/transport"

	"github.com/dynamic-controller/engine/test/apiproxy"
)

// servingRules returns the permissions of a platform whose Blueprints run as ServiceAccounts. It can list and watch
// children, but cannot impersonate anyone.
func (a *api) servingRules() []rbacv1.PolicyRule {
	return append(platformRules(), rule("*", a.group, "*"), rule("list,watch", "", "configmaps,secrets"))
}

// platformName returns the name of the platform's ServiceAccount in the namespace default.
func (a *api) platformName() string { return a.namespace }

// platform starts a platform with only the given permissions and without --allow-platform-identity. The permissions
// default to servingRules. It also returns the users that the platform impersonates.
func (a *api) platform(rules ...rbacv1.PolicyRule) (*process, *impersonations) {
	a.Helper()
	if rules == nil {
		rules = a.servingRules()
	}
	users := newImpersonations()
	kubeconfig, _ := a.proxiedAs(rules, users.wrap)
	return startServing(a.T, kubeconfig, "--allow-platform-identity=false"), users
}

// impersonations records the users that requests impersonate.
type impersonations struct {
	mu    sync.Mutex                 // guards users
	users map[string]map[string]bool // by verb and resource; "" is the platform itself
}

func newImpersonations() *impersonations { return &impersonations{users: map[string]map[string]bool{}} }

func (i *impersonations) wrap(next http.RoundTripper) http.RoundTripper {
	return &impersonationRecorder{i, next}
}

type impersonationRecorder struct {
	*impersonations
	next http.RoundTripper
}

func (r *impersonationRecorder) WrappedRoundTripper() http.RoundTripper { return r.next }

func (r *impersonationRecorder) RoundTrip(request *http.Request) (*http.Response, error) {
	kind := apiproxy.CallOf(request).Kind()
	r.mu.Lock()
	if r.users[kind] == nil {
		r.users[kind] = map[string]bool{}
	}
	r.users[kind][request.Header.Get(transport.ImpersonateUserHeader)] = true
	r.mu.Unlock()
	return r.next.RoundTrip(request)
}

var _ utilnet.RoundTripperWrapper = &impersonationRecorder{}

// onlyAs fails the test unless all requests of the given kind were sent as the user.
func (i *impersonations) onlyAs(t *testing.T, kind, user string) {
	t.Helper()
	i.mu.Lock()
	defer i.mu.Unlock()
	if got := i.users[kind]; len(got) != 1 || !got[user] {
		t.Errorf("%s: got users %v, want only %q", kind, got, user)
	}
}

// includes reports whether a request of the given kind was sent as the user.
func (i *impersonations) includes(kind, user string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.users[kind][user]
}
