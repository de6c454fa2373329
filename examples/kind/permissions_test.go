package kind

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/dynamic-controller/engine/internal/testkit"
	"github.com/dynamic-controller/engine/test/apiproxy"
)

// account returns a kubeconfig with a token for the platform's service account, and a proxy that records the account's
// calls.
func (a *api) account() (kubeconfig string, calls *apiproxy.Proxy) {
	a.Helper()
	proxy, err := apiproxy.Start(a.cluster.Config())
	if err != nil {
		a.Fatal(err)
	}
	a.Cleanup(proxy.Close)
	accounts, request := a.kube.CoreV1().ServiceAccounts(namespace), &authenticationv1.TokenRequest{}
	token, err := accounts.CreateToken(a.Context(), name, request, metav1.CreateOptions{})
	if err != nil {
		a.Fatal(err)
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["it"] = &clientcmdapi.Cluster{Server: proxy.URL(), CertificateAuthorityData: proxy.CAData()}
	config.AuthInfos["it"] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	config.Contexts["it"] = &clientcmdapi.Context{Cluster: "it", AuthInfo: "it"}
	config.CurrentContext = "it"
	path := filepath.Join(a.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		a.Fatal(err)
	}
	return path, proxy
}

// waitForPermissions waits until the account has the permissions of the aggregated role.
func (a *api) waitForPermissions() {
	a.Helper()
	user := serviceAccountUser(namespace, name)
	for _, want := range []authorizationv1.ResourceAttributes{
		{Group: "demo.example.com", Resource: "webapps", Subresource: "status", Verb: "patch"},
		{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions", Verb: "create"},
		{Group: "coordination.k8s.io", Resource: "leases", Namespace: namespace, Verb: "create"},
		{Group: "apps", Resource: "controllerrevisions", Namespace: namespace, Verb: "create"},
		{Group: "events.k8s.io", Resource: "events", Namespace: metav1.NamespaceDefault, Verb: "create"},
	} {
		testkit.Eventually(a.T, timeout, func() error {
			spec := authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: &want}
			review := &authorizationv1.SubjectAccessReview{Spec: spec}
			review, err := a.kube.AuthorizationV1().SubjectAccessReviews().Create(a.Context(), review, metav1.CreateOptions{})
			if err == nil && !review.Status.Allowed {
				err = fmt.Errorf("the account is not allowed to %s %s", want.Verb, want.Resource)
			}
			return err
		})
	}
}

// demoRole is the role with the permissions for the demonstration's Blueprint.
const demoRole = "dynamic-controller-demo"

// operatorRole is the role for users who read the status of the platform.
const operatorRole = "dynamic-controller-operator"

// rules returns the rules of the platform's own roles.
func rules(t *testing.T) (all []rbacv1.PolicyRule) {
	t.Helper()
	for _, obj := range manifests(t) {
		if obj.GetName() == demoRole || obj.GetName() == operatorRole {
			continue
		}
		switch obj.GetKind() {
		case "ClusterRole":
			if _, ofPlatform := obj.GetLabels()["platform.example.com/aggregate-to-dynamic-controller"]; ofPlatform {
				all = append(all, typed[rbacv1.ClusterRole](t, obj).Rules...)
			}
		case "Role":
			all = append(all, typed[rbacv1.Role](t, obj).Rules...)
		}
	}
	return all
}

// allowed reports whether the platform's service account has a permission.
func (a *api) allowed(ctx context.Context, attributes authorizationv1.ResourceAttributes) (bool, error) {
	review, err := a.kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: serviceAccountUser(namespace, name), ResourceAttributes: &attributes,
		},
	}, metav1.CreateOptions{})
	return err == nil && review.Status.Allowed, err
}

func (a *api) testTenant() {
	a.applyObjects(documents(a.T, "tenant.yaml"))
	serviceAccount := func(verb, namespace, name string) authorizationv1.ResourceAttributes {
		return authorizationv1.ResourceAttributes{
			Verb: verb, Version: "v1", Resource: "serviceaccounts", Namespace: namespace, Name: name,
		}
	}
	for _, verb := range []string{"get", "impersonate"} {
		testkit.Eventually(a.T, timeout, func() error {
			allowed, err := a.allowed(a.Context(), serviceAccount(verb, "shop", "webapps"))
			if err == nil && !allowed {
				err = fmt.Errorf("the platform is not allowed to %s the ServiceAccount", verb)
			}
			return err
		})
	}
	for _, denied := range []authorizationv1.ResourceAttributes{
		serviceAccount("impersonate", "shop", "default"),
		serviceAccount("impersonate", "default", "webapps"),
		serviceAccount("impersonate", namespace, name),
		serviceAccount("get", "shop", "default"),
		serviceAccount("list", "shop", ""),
		serviceAccount("patch", "shop", "webapps"),
		{Verb: "impersonate", Version: "v1", Resource: "users", Name: "admin"},
		{Verb: "impersonate", Version: "v1", Resource: "groups", Name: "system:serviceaccounts"},
	} {
		if allowed, err := a.allowed(a.Context(), denied); err != nil || allowed {
			a.Errorf("the platform is allowed to %s %s %s/%s (error %v)", denied.Verb, denied.Resource, denied.Namespace,
				denied.Name, err)
		}
	}
}

// TestKustomization_GrantsOnlyWhatThePlatformItselfRequires also fails for a new rule, so that the rule is reviewed.
func TestKustomization_GrantsOnlyWhatThePlatformItselfRequires(t *testing.T) {
	got := map[string]bool{}
	for _, obj := range kustomized(t) {
		if obj.GetName() == operatorRole {
			continue
		}
		var rules []rbacv1.PolicyRule
		switch obj.GetKind() {
		case "ClusterRole":
			rules = typed[rbacv1.ClusterRole](t, obj).Rules
		case "Role":
			rules = typed[rbacv1.Role](t, obj).Rules
		}
		for _, rule := range rules {
			for _, resource := range rule.Resources {
				got[fmt.Sprintf("%s %s.%s", obj.GetKind(), resource, rule.APIGroups[0])] = true
			}
		}
	}
	want := map[string]bool{
		"ClusterRole blueprints.platform.example.com":                true,
		"ClusterRole blueprints/status.platform.example.com":         true,
		"ClusterRole customresourcedefinitions.apiextensions.k8s.io": true,
		"ClusterRole apiservices.apiregistration.k8s.io":             true,
		"ClusterRole namespaces.":                                    true,
		"ClusterRole tokenreviews.authentication.k8s.io":             true,
		"ClusterRole subjectaccessreviews.authorization.k8s.io":      true,
		"Role leases.coordination.k8s.io":                            true,
		"Role controllerrevisions.apps":                              true,
		"Role events.events.k8s.io":                                  true,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the kustomization grants %v, want %v", got, want)
	}
}

func (a *api) testPermissions() {
	kubeconfig, calls := a.account()
	demo := exec.CommandContext(a.Context(), filepath.Join(binaries, "demo"), "--binary", filepath.Join(binaries, name),
		"--log", filepath.Join(a.TempDir(), "log"), "--namespace", namespace, "--platform-kubeconfig", kubeconfig)
	demo.Env = append(os.Environ(), "KUBECONFIG="+a.cluster.Kubeconfig())
	if out, err := demo.CombinedOutput(); err != nil {
		a.Errorf("%v:\n%s", err, out)
	}

	seen := calls.Calls()
	for _, c := range seen {
		if c.Status == http.StatusForbidden || c.Status == http.StatusUnauthorized {
			a.Errorf("denied with %d: %s %s (%s)", c.Status, c.Verb, c.Resource, c.Path)
		}
	}
	for _, unused := range unusedOf(rules(a.T), seen) {
		reason, known := rarelyUsed[unused]
		if strings.HasPrefix(unused, "list ") {
			reason, known = "it is required if the API server cannot stream lists", true
		}
		if known {
			a.Logf("the demonstration did not use %s: %s", unused, reason)
			continue
		}
		a.Errorf("the demonstration did not use %s", unused)
	}
}

// rarelyUsed contains permissions that the demonstration does not use in every run.
var rarelyUsed = map[string]string{
	"get blueprints.platform.example.com": "a Blueprint is read after a conflict",
	"get controllerrevisions.apps":        "a revision is read when the cache does not show it yet",
	"get namespaces.":                     "the namespace is read when children of a deleted instance cannot be deleted",
	"patch controllerrevisions.apps":      "a revision is renumbered when its spec is applied again",

	"create tokenreviews.authentication.k8s.io":        "a token is reviewed when metrics are read",
	"create subjectaccessreviews.authorization.k8s.io": "access is reviewed when metrics are read",
}

// TestDemoRole_HasThePermissionsOfTheBlueprint does not check for missing permissions: if one were missing, the
// platform would reject the Blueprint, and the demonstration would fail.
func TestDemoRole_HasThePermissionsOfTheBlueprint(t *testing.T) {
	var role rbacv1.ClusterRole
	for _, obj := range manifests(t) {
		if obj.GetName() == demoRole {
			role = *typed[rbacv1.ClusterRole](t, obj)
		}
	}
	instance := []string{"get", "list", "watch", "patch", "delete"}
	child := []string{"get", "list", "watch", "create", "patch", "delete"}
	want := map[string][]string{
		"webapps.demo.example.com": instance, "webapps/status.demo.example.com": {"patch"},
		"configmaps.": child, "services.": child, "deployments.apps": child,
		"events.events.k8s.io": {"create"},
	}
	got := map[string][]string{}
	for _, rule := range role.Rules {
		for _, resource := range rule.Resources {
			got[resource+"."+rule.APIGroups[0]] = rule.Verbs
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the role has %v, want %v", got, want)
	}
}

// unusedOf returns the permissions in the rules that no successful call used.
func unusedOf(rules []rbacv1.PolicyRule, calls []apiproxy.Call) (unused []string) {
	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					if !slices.ContainsFunc(calls, func(c apiproxy.Call) bool {
						return c.Group == group && c.Resource == resource && c.Verb == verb && c.Status < http.StatusBadRequest &&
							(len(rule.ResourceNames) == 0 || slices.Contains(rule.ResourceNames, c.Name))
					}) {
						unused = append(unused, fmt.Sprintf("%s %s.%s", verb, resource, group))
					}
				}
			}
		}
		if len(rule.NonResourceURLs) > 0 {
			unused = append(unused, strings.Join(rule.NonResourceURLs, ", "))
		}
	}
	return unused
}

func TestUnusedOf_ReturnsUnusedPermissions(t *testing.T) {
	rule := rbacv1.PolicyRule{
		APIGroups: []string{"a"}, Resources: []string{"b", "b/status"}, Verbs: []string{"get", "patch"},
		ResourceNames: []string{"c"},
	}
	calls := []apiproxy.Call{
		{Verb: "get", Group: "a", Resource: "b", Name: "c", Status: http.StatusOK},
		{Verb: "patch", Group: "a", Resource: "b", Name: "d", Status: http.StatusOK},
		{Verb: "patch", Group: "a", Resource: "b/status", Name: "c", Status: http.StatusForbidden},
	}
	want := []string{"patch b.a", "get b/status.a", "patch b/status.a"}
	if got := unusedOf([]rbacv1.PolicyRule{rule}, calls); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func (a *api) testProbes() {
	kubeconfig, _ := a.account()
	container := only[appsv1.Deployment](a.T, "Deployment").Spec.Template.Spec.Containers[0]
	args, ports := localArgs(container)
	addresses := a.listenAddresses(a.startPlatform(append(args, "--kubeconfig", kubeconfig)), len(ports))
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: timeout}
	numbers := map[string]string{}
	for _, p := range container.Ports {
		numbers[p.Name] = fmt.Sprint(p.ContainerPort)
	}
	for _, get := range []struct{ path, port string }{
		{container.ReadinessProbe.HTTPGet.Path, container.ReadinessProbe.HTTPGet.Port.String()},
		{container.LivenessProbe.HTTPGet.Path, container.LivenessProbe.HTTPGet.Port.String()},
	} {
		testkit.Eventually(a.T, timeout, func() error {
			response, err := client.Get("http://" + addresses[ports[numbers[get.port]]] + get.path)
			if err != nil {
				return err
			}
			response.Body.Close()
			if response.StatusCode != http.StatusOK {
				return fmt.Errorf("%s returned %s", get.path, response.Status)
			}
			return nil
		})
	}
	metrics := addresses[ports[numbers["metrics"]]]
	operator := a.tokenFor("operator", "dynamic-controller-operator")
	a.waitDiagnostics(metrics, "/statusz", operator)
	if code, err := getDiagnostics(a.Context(), metrics, pathMetrics, operator); code != http.StatusForbidden {
		a.Errorf("%s as the operator returned %d (error %v), want %d", pathMetrics, code, err, http.StatusForbidden)
	}
	a.waitDiagnostics(metrics, pathMetrics, a.tokenFor("metrics-reader", "dynamic-controller-metrics-reader"))
}

// tokenFor returns the token of a new ServiceAccount to which a ClusterRole is bound.
func (a *api) tokenFor(name, clusterRole string) string {
	a.Helper()
	object := metav1.ObjectMeta{Name: name}
	_, err1 := a.kube.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Create(a.Context(),
		&corev1.ServiceAccount{ObjectMeta: object}, metav1.CreateOptions{})
	_, err2 := a.kube.RbacV1().ClusterRoleBindings().Create(a.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: object,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: clusterRole},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceDefault, Name: name}},
	}, metav1.CreateOptions{})
	token, err3 := a.kube.CoreV1().ServiceAccounts(metav1.NamespaceDefault).CreateToken(a.Context(), name,
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err := errors.Join(err1, err2, err3); err != nil {
		a.Fatal(err)
	}
	a.Cleanup(func() {
		ctx := context.WithoutCancel(a.Context())
		err1 := a.kube.RbacV1().ClusterRoleBindings().Delete(ctx, name, metav1.DeleteOptions{})
		err2 := a.kube.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Delete(ctx, name, metav1.DeleteOptions{})
		if err := errors.Join(err1, err2); err != nil {
			a.Error(err)
		}
	})
	return token.Status.Token
}

const pathMetrics = "/metrics"

// waitDiagnostics waits until the path is served. The API server reads roles from a cache, so it can take a moment
// for a new role to take effect.
func (a *api) waitDiagnostics(address, path, token string) {
	a.Helper()
	testkit.Eventually(a.T, timeout, func() error {
		code, err := getDiagnostics(a.Context(), address, path, token)
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("%s returned %d", path, code)
		}
		return err
	})
}

// getDiagnostics returns the status of the response to a request for the path.
func getDiagnostics(ctx context.Context, address, path, token string) (code int, err error) {
	client := &http.Client{Timeout: timeout, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // the certificate is self-signed
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+path, nil)
	if err != nil {
		return 0, err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	response.Body.Close()
	return response.StatusCode, nil
}

// localArgs returns the arguments of a container, with free local ports in place of the configured ones. The result
// flags contains the name of the flag that sets each configured port.
func localArgs(container corev1.Container) (args []string, flags map[string]string) {
	port := regexp.MustCompile(`:(\d+)$`)
	flags = map[string]string{}
	for _, arg := range container.Args {
		if flag, address, ok := strings.Cut(arg, "="); ok && strings.HasSuffix(flag, "-bind-address") {
			flags[port.FindStringSubmatch(address)[1]] = strings.TrimPrefix(flag, "--")
			arg = flag + "=127.0.0.1:0"
		}
		args = append(args, arg)
	}
	return args, flags
}

// startPlatform runs the platform until the test ends. It returns the lines of its log.
func (a *api) startPlatform(args []string) <-chan string {
	a.Helper()
	cmd := exec.CommandContext(a.Context(), filepath.Join(binaries, name), args...)
	cmd.Env = append(os.Environ(), "POD_NAME=one", "POD_NAMESPACE="+namespace)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		a.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		a.Fatal(err)
	}
	lines := make(chan string)
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(lines)
		for s := bufio.NewScanner(stderr); s.Scan(); {
			select {
			case lines <- s.Text():
			case <-a.Context().Done():
			}
		}
	}()
	a.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-read
		_ = cmd.Wait()
	})
	return lines
}

// listenAddresses reads the addresses of the given number of endpoints from the log.
func (a *api) listenAddresses(lines <-chan string, count int) map[string]string {
	a.Helper()
	listening := regexp.MustCompile(`"Listening".*"endpoint":"([^"]+)","address":"([^"]+)"`)
	addresses := map[string]string{}
	expired := time.After(timeout)
	for len(addresses) < count {
		select {
		case text, ok := <-lines:
			if !ok {
				a.Fatal("the platform exited")
			}
			if found := listening.FindStringSubmatch(text); found != nil {
				addresses[found[1]] = found[2]
			}
		case <-expired:
			a.Fatalf("the platform listens only on %v", addresses)
		}
	}
	go func() { // the remaining output is ignored
		for range lines {
		}
	}()
	return addresses
}

// serviceAccountUser returns the name of the user that a ServiceAccount authenticates as.
func serviceAccountUser(namespace, name string) string {
	return "system:serviceaccount:" + namespace + ":" + name
}
