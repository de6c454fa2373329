package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/transport"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/identity"
	"github.com/dynamic-controller/engine/test/apiproxy"
)

// rule returns a rule of a role. Resources are separated by commas.
func rule(verbs, group, resources string, names ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{
		Verbs: strings.Split(verbs, ","), APIGroups: []string{group}, Resources: strings.Split(resources, ","),
		ResourceNames: names,
	}
}

// platformRules are the permissions of a platform whose Blueprints run as ServiceAccounts. It can list and watch
// children, and impersonate nobody.
func (a *api) platformRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		rule("*", "platform.example.com", "blueprints,blueprints/status"), rule("*", a.group, "*"),
		rule("*", "apiextensions.k8s.io", "customresourcedefinitions"), rule("*", "apps", "controllerrevisions"),
		rule("*", "coordination.k8s.io", "leases"), rule("list,watch", "apiregistration.k8s.io", "apiservices"),
		rule("list,watch", "", "configmaps,secrets"),
	}
}

// platformName is the name of the platform's ServiceAccount, which is in the namespace default.
func (a *api) platformName() string { return a.namespace }

// platform starts a platform with only the given permissions, without --allow-platform-identity. It records the users
// that it impersonates.
func (a *api) platform(args ...string) *impersonations {
	a.Helper()
	users := &impersonations{users: map[string]map[string]bool{}}
	proxy, err := apiproxy.Start(a.cluster.Config(), users.wrap)
	if err != nil {
		a.Fatal(err)
	}
	a.Cleanup(proxy.Close)
	direct, err := clientcmd.LoadFromFile(a.account(a.platformName(), a.platformRules()...))
	if err != nil {
		a.Fatal(err)
	}
	startServing(a.T, writeKubeconfig(a.T, &clientcmdapi.Cluster{
		Server: proxy.URL(), CertificateAuthorityData: proxy.CAData(),
	}, direct.AuthInfos["it"].Token), append([]string{"--allow-platform-identity=false"}, args...)...)
	return users
}

// impersonations records the impersonated users of requests.
type impersonations struct {
	mu    sync.Mutex                 // guards users
	users map[string]map[string]bool // by verb and resource; the platform is ""
}

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

// onlyAs fails the test unless all requests of the kind were sent as the user.
func (i *impersonations) onlyAs(t *testing.T, kind, user string) {
	t.Helper()
	i.mu.Lock()
	defer i.mu.Unlock()
	if got := i.users[kind]; len(got) != 1 || !got[user] {
		t.Errorf("%s was sent as %v, want only %q", kind, got, user)
	}
}

// serviceAccount creates a ServiceAccount, which the platform can impersonate, and returns its user name.
func (a *api) serviceAccount(namespace, name string) string {
	a.Helper()
	_, err := a.kube.CoreV1().ServiceAccounts(namespace).Create(a.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		a.Fatal(err)
	}
	a.grant(namespace, metav1.NamespaceDefault, a.platformName(), rule("get,impersonate", "", "serviceaccounts", name))
	return "system:serviceaccount:" + namespace + ":" + name
}

// consent sets the Blueprints that a ServiceAccount allows.
func (a *api) consent(namespace, name, blueprints string) {
	a.Helper()
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, identity.AllowedBlueprints, blueprints)
	_, err := a.kube.CoreV1().ServiceAccounts(namespace).Patch(a.Context(), name, types.MergePatchType, []byte(patch),
		metav1.PatchOptions{})
	if err != nil {
		a.Fatal(err)
	}
}

// grant gives the permissions in a namespace to a ServiceAccount, and returns a func that revokes them.
func (a *api) grant(namespace, toNamespace, toName string, rules ...rbacv1.PolicyRule) (revoke func()) {
	a.Helper()
	role, err := a.kube.RbacV1().Roles(namespace).Create(a.Context(),
		&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}, Rules: rules}, metav1.CreateOptions{})
	if err != nil {
		a.Fatal(err)
	}
	_, err = a.kube.RbacV1().RoleBindings(namespace).Create(a.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: toNamespace, Name: toName}},
	}, metav1.CreateOptions{})
	if err != nil {
		a.Fatal(err)
	}
	return func() {
		a.Helper()
		if err := a.kube.RbacV1().RoleBindings(namespace).Delete(a.Context(), role.Name, metav1.DeleteOptions{}); err != nil {
			a.Fatal(err)
		}
	}
}

// addNamespace creates a namespace until the test ends.
func (a *api) addNamespace(name string) string {
	a.Helper()
	namespaces := a.kube.CoreV1().Namespaces()
	_, err := namespaces.Create(a.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}},
		metav1.CreateOptions{})
	if err != nil {
		a.Fatal(err)
	}
	a.Cleanup(func() {
		err := namespaces.Delete(context.WithoutCancel(a.Context()), name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			a.Error(err)
		}
	})
	return name
}

const writeChildren = "get,create,patch,delete"

// runsAs is a field of a Blueprint that runs as the ServiceAccount web.
const runsAs = "  serviceAccountName: web"

func TestIdentity_BlueprintRunsAsItsServiceAccount(t *testing.T) {
	a := newAPI(t)
	users := a.platform()
	web := a.serviceAccount(a.namespace, "web")
	a.grant(a.namespace, a.namespace, "web", rule(writeChildren, "", "configmaps"))

	configMap := `{apiVersion: v1, kind: ConfigMap, metadata: {name: "${self.metadata.name}"},
        data: {a: "${self.spec.a}"}}`
	a.apply(making("Site", configMap))
	a.waitBlueprint("sites", is("Accepted", "False", "IdentityRequired", "spec.serviceAccountName"),
		is("Serving", "False"))
	a.apply(making("Site", configMap, runsAs))
	a.apply(making("Vault", `{apiVersion: v1, kind: Secret, metadata: {name: "${self.metadata.name}"}}`, runsAs))
	for _, name := range []string{"sites", "vaults"} {
		a.waitBlueprint(name, is("Accepted", "True"), is("Serving", "True"))
	}

	a.apply("{apiVersion: GROUP/v1, kind: Site, metadata: {name: flowers}, spec: {a: roses}}")
	a.wait("GROUP/v1", "Site", "flowers", is("Ready", "False", "ConsentMissing",
		"ServiceAccount "+a.namespace+"/web: does not allow Blueprint sites."+a.group))
	a.consent(a.namespace, "web", "sites."+a.group+",vaults."+a.group)
	a.wait("GROUP/v1", "Site", "flowers", is("Ready", "True"))
	a.wait("v1", "ConfigMap", "flowers", has("roses", "data", "a"))
	a.apply("{apiVersion: GROUP/v1, kind: Site, metadata: {name: flowers}, spec: {a: tulips}}")
	a.wait("v1", "ConfigMap", "flowers", has("tulips", "data", "a"))

	a.apply("{apiVersion: GROUP/v1, kind: Vault, metadata: {name: safe}}")
	a.wait("GROUP/v1", "Vault", "safe", is("Ready", "False", "Forbidden", "as ServiceAccount "+a.namespace+"/web: ",
		`cannot get resource "secrets"`))
	if _, err := a.get("v1", "Secret", "safe"); !apierrors.IsNotFound(err) {
		t.Errorf("the Secret: %v", err)
	}
	users.onlyAs(t, "patch configmaps", web)
	users.onlyAs(t, "get configmaps", web)
	users.onlyAs(t, "get secrets", web)
	users.onlyAs(t, "create selfsubjectreviews", "")
	users.onlyAs(t, "get serviceaccounts", "")
	users.onlyAs(t, "watch configmaps", "")
	users.onlyAs(t, "patch sites/status", "")
}

// The ServiceAccount and its permissions are deleted with the namespace, before the child in another namespace.
func TestIdentity_NamespaceDeletionKeepsInstancesWithChildrenElsewhere(t *testing.T) {
	a := newAPI(t)
	a.platform()
	tenant, far := a.addNamespace(a.namespace+"-tenant"), a.addNamespace(a.namespace+"-far")
	a.serviceAccount(tenant, "web")
	a.consent(tenant, "web", "places."+a.group)
	revoke := a.grant(far, tenant, "web", rule(writeChildren, "", "configmaps"))
	a.apply(making("Place", `{apiVersion: v1, kind: ConfigMap,
        metadata: {name: "${self.metadata.name}", namespace: "${self.spec.a}"}}`,
		runsAs, "  allowedNamespaces: [test-*]"))
	a.waitBlueprint("places", is("Accepted", "True"), is("Serving", "True"))
	a.apply("{apiVersion: GROUP/v1, kind: Place, metadata: {name: flowers, namespace: " + tenant + "}, " +
		"spec: {a: " + far + "}}")
	a.wait("GROUP/v1", "Place", tenant+"/flowers", is("Ready", "True"))
	revoke()
	if err := a.kube.CoreV1().Namespaces().Delete(t.Context(), tenant, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	place := a.wait("GROUP/v1", "Place", tenant+"/flowers", is("Ready", "False", "CleanupForbidden",
		"cannot delete configmaps "+far+"/flowers: ",
		"kubectl patch places."+a.group+" flowers -n "+tenant+" --type=merge -p "))
	var message string
	for _, c := range conditions(place) {
		message = c.Message
	}
	_, patch, _ := strings.Cut(message, "--type=merge -p '")
	patch = strings.TrimSuffix(patch, "'")
	if _, err := a.client(place).Patch(t.Context(), "flowers", types.MergePatchType, []byte(patch),
		metav1.PatchOptions{}); err != nil {
		t.Fatalf("patch %s: %v", patch, err)
	}
	a.waitGone("GROUP/v1", "Place", tenant+"/flowers")
	a.waitGone("v1", "Namespace", tenant)
	if _, err := a.get("v1", "ConfigMap", far+"/flowers"); err != nil {
		t.Error(err)
	}
}

// A tenant of another namespace forges a child there, where the ServiceAccount has no permissions.
func TestIdentity_ForgedChildElsewhereDoesNotBlockAnInstance(t *testing.T) {
	a := newAPI(t)
	a.platform()
	far, theirs := a.addNamespace(a.namespace+"-far"), a.addNamespace(a.namespace+"-theirs")
	a.serviceAccount(a.namespace, "web")
	a.consent(a.namespace, "web", "places."+a.group)
	a.grant(far, a.namespace, "web", rule(writeChildren, "", "configmaps"))
	a.apply(making("Place", `{apiVersion: v1, kind: ConfigMap,
        metadata: {name: "${self.metadata.name}", namespace: "${self.spec.a}"}, data: {b: "${self.spec.b}"}}`,
		runsAs, "  allowedNamespaces: [test-*]"))
	a.waitBlueprint("places", is("Accepted", "True"), is("Serving", "True"))
	place := a.apply("{apiVersion: GROUP/v1, kind: Place, metadata: {name: flowers}, spec: {a: " + far + ", b: roses}}")
	a.wait("GROUP/v1", "Place", "flowers", is("Ready", "True"))
	a.apply(`{apiVersion: v1, kind: ConfigMap, metadata: {name: forged, namespace: ` + theirs + `,
        labels: {platform.example.com/parent: ` + string(place.GetUID()) + `},
        annotations: {platform.example.com/self: ` + theirs + `/forged, platform.example.com/stage: "9",
        platform.example.com/resource: child, platform.example.com/instance: ` + a.namespace + `/flowers}}}`)
	a.apply("{apiVersion: GROUP/v1, kind: Place, metadata: {name: flowers}, spec: {a: " + far + ", b: tulips}}")
	a.wait("v1", "ConfigMap", far+"/flowers", has("tulips", "data", "b"))
	a.wait("GROUP/v1", "Place", "flowers", is("Ready", "True"))
	a.delete("GROUP/v1", "Place", "flowers")
	a.waitGone("GROUP/v1", "Place", "flowers")
	a.waitGone("v1", "ConfigMap", far+"/flowers")
	if _, err := a.get("v1", "ConfigMap", theirs+"/forged"); err != nil {
		t.Error(err)
	}
}
