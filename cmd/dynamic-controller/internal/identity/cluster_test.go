package identity

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/serverfence"
	"github.com/dynamic-controller/engine/internal/testkit"
)

var secrets = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}

// rule returns a rule of a Role. The resource can have the group as a suffix.
func rule(verbs, resource string, names ...string) rbacv1.PolicyRule {
	resource, group, _ := strings.Cut(resource, ".")
	return rbacv1.PolicyRule{
		Verbs: strings.Split(verbs, ","), APIGroups: []string{group}, Resources: []string{resource}, ResourceNames: names,
	}
}

// rig is a platform and a tenant's namespace with ServiceAccount web on a real API server. Nothing is granted
// initially.
type rig struct {
	*testing.T
	admin            kubernetes.Interface
	platform, tenant string // namespaces
	config           *rest.Config
	manager          *Manager
	clock            *clocktesting.FakePassiveClock
}

func newRig(t *testing.T) *rig {
	t.Helper()
	c := shared.Cluster(t)
	r := &rig{T: t, clock: clocktesting.NewFakePassiveClock(time.Now())}
	admin, err := kubernetes.NewForConfig(c.Config())
	r.must(err)
	r.admin = admin
	r.platform, r.tenant = r.namespace("platform-"), r.namespace("tenant-")
	r.account(r.platform, "controller")
	r.account(r.tenant, "web")
	token, err := admin.CoreV1().ServiceAccounts(r.platform).CreateToken(t.Context(), "controller",
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	r.must(err)
	r.config = rest.AnonymousClientConfig(c.Config())
	r.config.BearerToken = token.Status.Token
	r.manager = r.newManager(r.clock)
	return r
}

func (r *rig) newManager(c clock.PassiveClock) *Manager {
	r.Helper()
	m, err := New(r.config, Options{Namespace: r.platform, Clock: c})
	r.must(err)
	r.Cleanup(func() { utilnet.CloseIdleConnectionsFor(m.transport) })
	return m
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func (r *rig) namespace(prefix string) string {
	r.Helper()
	namespaces := r.admin.CoreV1().Namespaces()
	created, err := namespaces.Create(r.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: prefix}},
		metav1.CreateOptions{})
	r.must(err)
	r.Cleanup(func() {
		if err := namespaces.Delete(context.WithoutCancel(r.Context()), created.Name, metav1.DeleteOptions{}); err != nil {
			r.Error(err)
		}
	})
	return created.Name
}

func (r *rig) account(namespace, name string) Identity {
	r.Helper()
	_, err := r.admin.CoreV1().ServiceAccounts(namespace).Create(r.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	r.must(err)
	return Identity{namespace, name}
}

// grant grants the rules to a ServiceAccount in a namespace. It returns a function that revokes them.
func (r *rig) grant(to Identity, namespace string, rules ...rbacv1.PolicyRule) (revoke func()) {
	r.Helper()
	role, err := r.admin.RbacV1().Roles(namespace).Create(r.Context(),
		&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}, Rules: rules}, metav1.CreateOptions{})
	r.must(err)
	_, err = r.admin.RbacV1().RoleBindings(namespace).Create(r.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: to.Namespace, Name: to.Name}},
	}, metav1.CreateOptions{})
	r.must(err)
	return func() {
		r.Helper()
		r.must(r.admin.RbacV1().RoleBindings(namespace).Delete(r.Context(), role.Name, metav1.DeleteOptions{}))
	}
}

func (r *rig) own() Identity { return Identity{r.platform, "controller"} }
func (r *rig) web() Identity { return Identity{r.tenant, "web"} }

// grantImpersonation grants the platform the rule that the messages and the documentation name.
func (r *rig) grantImpersonation() {
	r.Helper()
	r.grant(r.own(), r.tenant, rule("get,impersonate", "serviceaccounts", "web"))
	client := r.client(r.web())
	r.eventually("the platform can impersonate", func() bool {
		_, err := client.Resource(configMaps).Namespace(r.tenant).Get(r.Context(), "x", metav1.GetOptions{})
		return !IsImpersonationForbidden(err)
	})
}

// annotate sets the Blueprints that ServiceAccount web allows.
func (r *rig) annotate(blueprints string) {
	r.Helper()
	patch := `{"metadata":{"annotations":{"` + AllowedBlueprints + `":"` + blueprints + `"}}}`
	_, err := r.admin.CoreV1().ServiceAccounts(r.tenant).Patch(r.Context(), "web", types.MergePatchType, []byte(patch),
		metav1.PatchOptions{})
	r.must(err)
}

func (r *rig) client(id Identity) dynamic.Interface {
	r.Helper()
	client, err := r.manager.Client(id)
	r.must(err)
	return client
}

// eventually waits until the API server's authorizer has processed a change.
func (r *rig) eventually(what string, done func() bool) {
	r.Helper()
	testkit.Eventually(r, 30*time.Second, func() error {
		if !done() {
			return fmt.Errorf("waiting for: %s", what)
		}
		return nil
	})
}

// whoami returns the user that the API server authenticates.
func (r *rig) whoami(m *Manager, id Identity) (authenticationv1.UserInfo, error) {
	r.Helper()
	review, err := m.create(r.Context(), id, authenticationv1.SchemeGroupVersion.WithResource("selfsubjectreviews"),
		"SelfSubjectReview", nil)
	if err != nil {
		return authenticationv1.UserInfo{}, err
	}
	var typed authenticationv1.SelfSubjectReview
	r.must(runtime.DefaultUnstructuredConverter.FromUnstructured(review.Object, &typed))
	return typed.Status.UserInfo, nil
}

func TestAPIServer_ImpersonationRequiresOneNamedServiceAccount(t *testing.T) {
	r := newRig(t)
	other := r.account(r.tenant, "other")
	if _, err := r.whoami(r.manager, r.web()); !IsImpersonationForbidden(err) {
		t.Fatalf("got %v without a grant, want impersonation to be denied", err)
	}
	r.grantImpersonation()
	user, err := r.whoami(r.manager, r.web())
	r.must(err)
	want := append(serviceaccount.MakeGroupNames(r.tenant), "system:authenticated")
	if user.Username != r.web().Username() || !slices.Equal(user.Groups, want) || user.UID != "" ||
		len(user.Extra) != 0 {
		t.Errorf("got user %v, want %s with groups %v", user, r.web().Username(), want)
	}
	for _, id := range []Identity{other, {r.platform, "web"}, {"kube-system", "web"}} {
		if _, err := r.whoami(r.manager, id); !IsImpersonationForbidden(err) {
			t.Errorf("%s: got %v, want impersonation to be denied", id, err)
		}
	}
	for name, more := range map[string]transport.ImpersonationConfig{
		"groups": {Groups: serviceaccount.MakeGroupNames(r.tenant)},
		"uids":   {UID: "1"},
	} {
		more.UserName = r.web().Username()
		cfg := rest.CopyConfig(r.config)
		cfg.Impersonate = rest.ImpersonationConfig{UserName: more.UserName, Groups: more.Groups, UID: more.UID}
		client, err := dynamic.NewForConfigAndClient(cfg,
			&http.Client{Transport: transport.NewImpersonatingRoundTripper(more, r.manager.transport)})
		r.must(err)
		_, err = client.Resource(configMaps).Namespace(r.tenant).Get(t.Context(), "x", metav1.GetOptions{})
		const atClusterScope = "at the cluster scope"
		if !IsImpersonationForbidden(err) ||
			!strings.Contains(err.Error(), `cannot impersonate resource "`+name+`"`) ||
			!strings.Contains(err.Error(), atClusterScope) {
			t.Errorf("with %s: got %v, want impersonation to be denied %s", name, err, atClusterScope)
		}
	}
}

// With a fence on the server, writes carry extra fields of the user.
func TestAPIServer_FieldsOfTheFenceRequireAPermission(t *testing.T) {
	r := newRig(t)
	r.grantImpersonation()
	cfg := rest.CopyConfig(r.config)
	cfg.Impersonate = rest.ImpersonationConfig{UserName: r.web().Username(), Extra: map[string][]string{
		serverfence.LeaseExtra: {"any/lease"}, serverfence.HolderExtra: {"any"},
	}}
	client, err := dynamic.NewForConfig(cfg)
	r.must(err)
	_, err = client.Resource(configMaps).Namespace(r.tenant).Get(t.Context(), "x", metav1.GetOptions{})
	if !IsFenceForbidden(err) || IsImpersonationForbidden(err) {
		t.Errorf("got %v, want that the fields are denied", err)
	}
}

func TestAPIServer_ConstrainedImpersonation(t *testing.T) {
	r := newRig(t)
	r.grant(r.web(), r.tenant, rule("get,create,patch,delete", "configmaps"), rule("get", "secrets"))
	configMap := func(do func(dynamic.ResourceInterface) error) error {
		return do(r.client(r.web()).Resource(configMaps).Namespace(r.tenant))
	}
	apply := func(c dynamic.ResourceInterface) error { return applyPage(r.Context(), c) }
	get := func(c dynamic.ResourceInterface) error {
		_, err := c.Get(r.Context(), "page", metav1.GetOptions{})
		return err
	}
	remove := func(c dynamic.ResourceInterface) error {
		return c.Delete(r.Context(), "page", metav1.DeleteOptions{})
	}
	if err := configMap(apply); !IsImpersonationForbidden(err) {
		t.Fatalf("got %v without a grant, want impersonation to be denied", err)
	}

	// Two rules are required: one for the ServiceAccount, and one for the requests.
	r.grant(r.own(), r.tenant, rule("impersonate:serviceaccount", "serviceaccounts.authentication.k8s.io", "web"))
	r.grant(r.own(), r.tenant, rule("impersonate-on:serviceaccount:patch,impersonate-on:serviceaccount:get", "configmaps"))
	r.eventually("the identity can apply", func() bool { return configMap(apply) == nil })
	r.must(configMap(get))
	if err := configMap(remove); !IsImpersonationForbidden(err) {
		t.Errorf("delete: got %v, want impersonation to be denied for this verb", err)
	}
	_, err := r.client(r.web()).Resource(secrets).Namespace(r.tenant).Get(t.Context(), "x", metav1.GetOptions{})
	if !IsImpersonationForbidden(err) {
		t.Errorf("get a Secret: got %v, want impersonation to be denied for this resource", err)
	}
	if _, err := r.manager.CanRead(t.Context(), r.web(), configMaps, r.tenant); !IsImpersonationForbidden(err) {
		t.Errorf("review the access: got %v, want impersonation to be denied", err)
	}

	// Access reviews are requests at the cluster scope.
	name := r.tenant
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{
		rule("impersonate-on:serviceaccount:create", "selfsubjectaccessreviews.authorization.k8s.io"),
	}}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: r.platform, Name: "controller"}},
	}
	_, err1 := r.admin.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{})
	_, err2 := r.admin.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{})
	r.must(errors.Join(err1, err2))
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		err1 := r.admin.RbacV1().ClusterRoles().Delete(ctx, name, metav1.DeleteOptions{})
		err2 := r.admin.RbacV1().ClusterRoleBindings().Delete(ctx, name, metav1.DeleteOptions{})
		if err := errors.Join(err1, err2); err != nil {
			t.Error(err)
		}
	})
	r.eventually("the access can be reviewed", func() bool {
		allowed, err := r.manager.CanRead(t.Context(), r.web(), configMaps, r.tenant)
		return err == nil && allowed
	})
}

// applyPage applies a ConfigMap in the same way as the platform applies children.
func applyPage(ctx context.Context, c dynamic.ResourceInterface) error {
	const page = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"page"},"data":{"text":"roses"}}`
	_, err := c.Patch(ctx, "page", types.ApplyPatchType, []byte(page),
		metav1.PatchOptions{FieldManager: "platform.example.com"})
	return err
}

func TestAPIServer_IdentityHasOnlyItsOwnPermissions(t *testing.T) {
	r := newRig(t)
	r.grantImpersonation()
	// The platform can read and write everything, as if an operator had granted too many permissions.
	r.grant(r.own(), r.tenant, rule("*", "secrets"), rule("*", "configmaps"))
	r.grant(r.own(), r.platform, rule("*", "secrets"), rule("*", "configmaps"))
	revoke := r.grant(r.web(), r.tenant, rule("get,create,patch", "configmaps"))
	own := r.client(Identity{})
	r.eventually("the platform can write", func() bool {
		return applyPage(t.Context(), own.Resource(configMaps).Namespace(r.platform)) == nil
	})

	client := r.client(r.web())
	pages := client.Resource(configMaps).Namespace(r.tenant)
	r.eventually("the identity can write", func() bool { return applyPage(t.Context(), pages) == nil })
	if page, err := pages.Get(t.Context(), "page", metav1.GetOptions{}); err != nil || page.GetName() != "page" {
		t.Errorf("got %v, %v for an object that the identity can read", page, err)
	}
	for name, do := range map[string]func() error{
		"read a Secret": func() error {
			_, err := client.Resource(secrets).Namespace(r.tenant).Get(t.Context(), "x", metav1.GetOptions{})
			return err
		},
		"list":   func() error { _, err := pages.List(t.Context(), metav1.ListOptions{}); return err },
		"delete": func() error { return pages.Delete(t.Context(), "page", metav1.DeleteOptions{}) },
		"write in the platform's namespace": func() error {
			return applyPage(t.Context(), client.Resource(configMaps).Namespace(r.platform))
		},
		"read in the platform's namespace": func() error {
			_, err := client.Resource(configMaps).Namespace(r.platform).Get(t.Context(), "page", metav1.GetOptions{})
			return err
		},
		"impersonate again": func() error {
			_, err := client.Resource(serviceAccounts).Namespace(r.tenant).Get(t.Context(), "web", metav1.GetOptions{})
			return err
		},
	} {
		err := do()
		if !apierrors.IsForbidden(err) || IsImpersonationForbidden(err) ||
			!strings.Contains(err.Error(), r.web().Username()) {
			t.Errorf("%s: got %v, want it to be denied to the identity", name, err)
		}
	}

	canRead := func(id Identity, gvr schema.GroupVersionResource, namespace string) bool {
		t.Helper()
		allowed, err := r.manager.CanRead(t.Context(), id, gvr, namespace)
		r.must(err)
		return allowed
	}
	if !canRead(r.web(), configMaps, r.tenant) {
		t.Error("the identity cannot read ConfigMaps")
	}
	if canRead(r.web(), secrets, r.tenant) || canRead(r.web(), configMaps, r.platform) ||
		canRead(r.web(), configMaps, "") {
		t.Error("the identity can read objects that its role does not allow")
	}

	revoke()
	r.eventually("the identity can no longer write", func() bool {
		err := applyPage(t.Context(), pages)
		return apierrors.IsForbidden(err) && !IsImpersonationForbidden(err)
	})
	if !canRead(r.web(), configMaps, r.tenant) {
		t.Error("the answer is not cached")
	}
	r.clock.SetTime(r.clock.Now().Add(time.Minute))
	if canRead(r.web(), configMaps, r.tenant) {
		t.Error("the identity can read after a minute without a role")
	}
}

// A role for named objects must not allow reading cached copies of all objects. The identity can still get the named
// object.
func TestAPIServer_ResourceNamesDoNotAllowCachedReads(t *testing.T) {
	r := newRig(t)
	r.grantImpersonation()
	r.grant(r.web(), r.tenant, rule("get", "configmaps", "page"))
	pages := r.client(r.web()).Resource(configMaps).Namespace(r.tenant)
	r.eventually("the identity can read its object", func() bool {
		_, err := pages.Get(t.Context(), "page", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	if allowed, err := r.manager.CanRead(t.Context(), r.web(), configMaps, r.tenant); err != nil || allowed {
		t.Errorf("got %t, %v; want false", allowed, err)
	}
}

func TestAPIServer_Resolve(t *testing.T) {
	r := newRig(t)
	request := Request{Blueprint: "websites", ServiceAccountName: "web", Namespace: r.tenant}
	resolve := func() error {
		_, err := r.manager.Resolve(t.Context(), request)
		return err
	}
	wantRejection(t, resolve(), ReasonPermissionMissing, "not permitted to read this ServiceAccount")
	r.grantImpersonation()
	r.expire()
	wantRejection(t, resolve(), ReasonConsentMissing,
		"kubectl annotate serviceaccount -n "+r.tenant+" web "+AllowedBlueprints+"=websites")
	r.annotate("flowers, websites")
	r.expire()
	r.must(resolve())

	r.annotate("flowers")
	r.must(resolve()) // cached
	r.expire()
	wantRejection(t, resolve(), ReasonConsentMissing, "does not allow Blueprint websites")

	r.annotate("websites")
	r.expire()
	r.must(resolve())
	r.must(r.admin.CoreV1().ServiceAccounts(r.tenant).Delete(t.Context(), "web", metav1.DeleteOptions{}))
	r.expire()
	wantRejection(t, resolve(), ReasonServiceAccountNotFound, "not found")

	// The platform's own ServiceAccount is determined by a review, not by the platform's namespace.
	elsewhere, err := New(r.config, Options{Namespace: "elsewhere"})
	r.must(err)
	t.Cleanup(func() { utilnet.CloseIdleConnectionsFor(elsewhere.transport) })
	_, err = elsewhere.Resolve(t.Context(),
		Request{Blueprint: "websites", ServiceAccountName: "controller", Namespace: r.platform})
	wantRejection(t, err, ReasonServiceAccountNotAllowed, "the platform's own ServiceAccount")
}

// expire makes all cached answers expire.
func (r *rig) expire() { r.clock.SetTime(r.clock.Now().Add(time.Minute)) }
