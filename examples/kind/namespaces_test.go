package kind

import (
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/internal/testkit"
	"github.com/dynamic-controller/engine/test/apiproxy"
)

var (
	blueprints = schema.GroupVersionResource{
		Group: "platform.example.com", Version: "v1alpha1", Resource: "blueprints",
	}
	webapps = schema.GroupVersionResource{Group: "demo.example.com", Version: "v1", Resource: "webapps"}
)

// testNamespaces runs the platform with permissions for instances and children in the namespace shop only.
func (a *api) testNamespaces() {
	a.revokeDemoRole()
	testkit.Eventually(a.T, timeout, func() error { // an earlier test may have created it
		shop, err := a.kube.CoreV1().Namespaces().Get(a.Context(), "shop", metav1.GetOptions{})
		if err == nil {
			return fmt.Errorf("the namespace shop is %s", shop.Status.Phase)
		}
		return ignoreNotFound(err)
	})
	a.applyObjects(append(documents(a.T, "tenant.yaml"), documents(a.T, "namespaces.yaml")...))
	kubeconfig, proxy := a.account()
	lines := a.startPlatform([]string{
		"run", "--namespaces=shop", "--health-probe-bind-address=0", "--kubeconfig", kubeconfig,
	})
	go func() { // the output is ignored
		for range lines {
		}
	}()

	blueprint := documents(a.T, filepath.Join("..", "demo", "webapps.yaml"))[0]
	if err := unstructured.SetNestedField(blueprint.Object, "webapps", "spec", "serviceAccountName"); err != nil {
		a.Fatal(err)
	}
	testkit.Eventually(a.T, timeout, func() error { return a.apply(blueprint) })
	elsewhere := a.createWebApp("default")
	a.createWebApp("shop")
	testkit.Eventually(a.T, timeout, func() error {
		webapp, err := a.dynamic.Resource(webapps).Namespace("shop").Get(a.Context(), "hello", metav1.GetOptions{})
		if err != nil {
			return err
		}
		return requireCondition(webapp, "Ready")
	})
	left, err := a.dynamic.Resource(webapps).Namespace("default").Get(a.Context(), "hello", metav1.GetOptions{})
	if err != nil || left.GetResourceVersion() != elsewhere.GetResourceVersion() {
		a.Errorf("the instance in another namespace was changed to %v (error %v)", left, err)
	}

	if err := a.dynamic.Resource(blueprints).Delete(a.Context(), blueprint.GetName(), metav1.DeleteOptions{}); err != nil {
		a.Fatal(err)
	}
	testkit.Eventually(a.T, timeout, func() error {
		blueprint, err := a.dynamic.Resource(blueprints).Get(a.Context(), blueprint.GetName(), metav1.GetOptions{})
		if err == nil {
			return fmt.Errorf("the Blueprint still exists: %v", blueprint.Object["status"])
		}
		return ignoreNotFound(err)
	})
	requireNamespaced(a.T, proxy.Calls())
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// revokeDemoRole revokes the permissions in all namespaces.
func (a *api) revokeDemoRole() {
	a.Helper()
	err := a.kube.RbacV1().ClusterRoles().Delete(a.Context(), demoRole, metav1.DeleteOptions{})
	if err != nil {
		a.Fatal(err)
	}
	list := authorizationv1.ResourceAttributes{Verb: "list", Group: webapps.Group, Resource: webapps.Resource}
	testkit.Eventually(a.T, timeout, func() error {
		allowed, err := a.allowed(a.Context(), list)
		if err == nil && allowed {
			err = fmt.Errorf("the account is still allowed to list all WebApps")
		}
		return err
	})
}

func (a *api) createWebApp(namespace string) (created *unstructured.Unstructured) {
	a.Helper()
	webapp := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"greeting": "hello"}}}
	webapp.SetGroupVersionKind(webapps.GroupVersion().WithKind("WebApp"))
	webapp.SetName("hello")
	testkit.Eventually(a.T, timeout, func() (err error) {
		created, err = a.dynamic.Resource(webapps).Namespace(namespace).Create(a.Context(), webapp, metav1.CreateOptions{})
		return err
	})
	return created
}

// requireCondition returns an error unless the condition is True.
func requireCondition(object *unstructured.Unstructured, name string) error {
	conditions, _, err := unstructured.NestedSlice(object.Object, "status", "conditions")
	if err == nil && !slices.ContainsFunc(conditions, func(c any) bool {
		condition, ok := c.(map[string]any)
		return ok && condition["type"] == name && condition["status"] == string(metav1.ConditionTrue)
	}) {
		err = fmt.Errorf("the condition %s is not True: %v", name, conditions)
	}
	return err
}

// requireNamespaced fails the test if a request for instances or children was sent for a namespace other than shop or
// for all namespaces, or if any request was denied.
func requireNamespaced(t *testing.T, calls []apiproxy.Call) {
	t.Helper()
	watched := map[string]bool{}
	for _, c := range calls {
		if c.Status == http.StatusForbidden || c.Status == http.StatusUnauthorized {
			t.Errorf("denied with %d: %s %s (%s)", c.Status, c.Verb, c.Resource, c.Path)
		}
		switch c.Group {
		case webapps.Group, appsv1.GroupName, "":
			if c.Resource == "" || c.Resource == "controllerrevisions" && c.Namespace == namespace {
				continue
			}
			if c.Namespace != "shop" {
				t.Errorf("a request for another namespace: %s %s (%s)", c.Verb, c.Resource, c.Path)
			}
			watched[c.Resource] = watched[c.Resource] || c.Verb == "watch"
		}
	}
	for _, resource := range []string{"webapps", "configmaps", "services", "deployments"} {
		if !watched[resource] {
			t.Errorf("no watch of %s was recorded", resource)
		}
	}
}

// The ServiceAccount of the tenant writes the children.
func TestNamespaces_GrantsNoWritesOfChildren(t *testing.T) {
	for _, object := range documents(t, "namespaces.yaml") {
		if object.GetNamespace() != "shop" {
			t.Errorf("%s %s is in namespace %q", object.GetKind(), object.GetName(), object.GetNamespace())
		}
		if object.GetKind() != "Role" {
			continue
		}
		for _, rule := range typed[rbacv1.Role](t, object).Rules {
			writes := slices.ContainsFunc(rule.Verbs, func(verb string) bool { return verb != "list" && verb != "watch" })
			if writes && !slices.Contains([]string{webapps.Group, eventsv1.GroupName}, rule.APIGroups[0]) {
				t.Errorf("the Role grants %v on %v", rule.Verbs, rule.Resources)
			}
		}
	}
}
