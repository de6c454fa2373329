package kind

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"

	"github.com/dynamic-controller/engine/internal/testkit"
)

const hook = "dynamic-controller-webhook"

// component contains the fields of the component that the tests support.
type component struct {
	metav1.TypeMeta `json:",inline"`
	Resources       []string
	Patches         []struct {
		Patch  string
		Target struct{ Group, Version, Kind, Name string }
	}
}

// webhookComponent returns the resources of the component, and its JSON patch of the Deployment.
func webhookComponent(t *testing.T) (all []*unstructured.Unstructured, patch []byte) {
	t.Helper()
	var c component
	if err := yaml.UnmarshalStrict(read(t, filepath.Join(base, "webhook", "kustomization.yaml")), &c); err != nil {
		t.Fatal(err)
	}
	for _, file := range c.Resources {
		all = append(all, documents(t, filepath.Join(base, "webhook", file))...)
	}
	if len(c.Patches) != 1 || c.Patches[0].Target.Kind != "Deployment" || c.Patches[0].Target.Name != name {
		t.Fatalf("the patches are %+v", c.Patches)
	}
	patch, err := yaml.ToJSON([]byte(c.Patches[0].Patch))
	if err != nil {
		t.Fatal(err)
	}
	return all, patch
}

// ofKind returns the only object of a type.
func ofKind[T any](t *testing.T, objects []*unstructured.Unstructured, kind string) *T {
	t.Helper()
	var found []*T
	for _, obj := range objects {
		if obj.GetKind() == kind {
			found = append(found, typed[T](t, obj))
		}
	}
	if len(found) != 1 {
		t.Fatalf("got %d objects of the kind %s, want one", len(found), kind)
	}
	return found[0]
}

func TestWebhook_GrantsOnlyItsOwnObjects(t *testing.T) {
	all, _ := webhookComponent(t)
	want := map[string][]rbacv1.PolicyRule{
		"Role": {{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{hook},
			Verbs: []string{"get", "update"}}},
		"ClusterRole": {{APIGroups: []string{"admissionregistration.k8s.io"},
			Resources: []string{"validatingwebhookconfigurations"}, ResourceNames: []string{hook},
			Verbs: []string{"get", "patch"}}},
	}
	got := map[string][]rbacv1.PolicyRule{
		"Role":        ofKind[rbacv1.Role](t, all, "Role").Rules,
		"ClusterRole": ofKind[rbacv1.ClusterRole](t, all, "ClusterRole").Rules,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the component grants %v, want %v", got, want)
	}
}

func TestWebhook_IsOptionalForTheAPIServer(t *testing.T) {
	all, _ := webhookComponent(t)
	config := ofKind[admissionregistrationv1.ValidatingWebhookConfiguration](t, all, "ValidatingWebhookConfiguration")
	for _, w := range config.Webhooks {
		if *w.FailurePolicy != admissionregistrationv1.Ignore || *w.TimeoutSeconds != 5 ||
			*w.SideEffects != admissionregistrationv1.SideEffectClassNone {
			t.Errorf("the webhook is %+v", w)
		}
	}
}

// testWebhook runs the platform with the arguments of the Deployment to which the component has been applied.
func (a *api) testWebhook() {
	all, patch := webhookComponent(a.T)
	a.applyObjects(all)
	for _, obj := range all {
		if err := a.apply(obj); err != nil { // applying a manifest again must succeed
			a.Errorf("%s %s: %v", obj.GetKind(), obj.GetName(), err)
		}
	}
	deployment, err := a.kube.AppsV1().Deployments(namespace).Patch(a.Context(), name, types.JSONPatchType, patch,
		metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict})
	if err != nil {
		a.Fatal(err)
	}
	kubeconfig, proxy := a.account()
	container := deployment.Spec.Template.Spec.Containers[0]
	args, flags := localArgs(container)
	addresses := a.listenAddresses(a.startPlatform(append(args, "--kubeconfig", kubeconfig)), len(flags))

	// There is no kube-proxy, so the Service is changed to an alias of localhost.
	service := ofKind[corev1.Service](a.T, all, "Service")
	target := service.Spec.Ports[0].TargetPort.String()
	if !slices.ContainsFunc(container.Ports, func(p corev1.ContainerPort) bool {
		return p.Name == target && flags[fmt.Sprint(p.ContainerPort)] == "webhook-bind-address"
	}) {
		a.Errorf("the target port %s is not one of %+v", target, container.Ports)
	}
	_, port, err := net.SplitHostPort(addresses["webhook-bind-address"])
	if err != nil {
		a.Fatal(err)
	}
	a.patch("services", service.Name, `{"spec":{"type":"ExternalName","externalName":"localhost","selector":null,`+
		`"clusterIP":null,"clusterIPs":null}}`)
	configs := a.kube.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	_, err = configs.Patch(a.Context(), hook, types.JSONPatchType,
		[]byte(`[{"op":"replace","path":"/webhooks/0/clientConfig/service/port","value":`+port+`}]`), metav1.PatchOptions{})
	if err != nil {
		a.Fatal(err)
	}

	wrong := documents(a.T, filepath.Join("..", "demo", "webapps.yaml"))[0]
	if err := unstructured.SetNestedField(wrong.Object, "${nothing}", "spec", "type", "status", "nothing"); err != nil {
		a.Fatal(err)
	}
	testkit.Eventually(a.T, timeout, func() error {
		dryRun := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
		_, err := a.dynamic.Resource(blueprints).Create(a.Context(), wrong, dryRun)
		if err == nil || !strings.Contains(err.Error(), `admission webhook "blueprints.platform.example.com" denied`) {
			return fmt.Errorf("got the error %w for an invalid Blueprint", err)
		}
		return nil
	})
	calls := proxy.Calls()
	for _, c := range calls {
		if c.Status == http.StatusForbidden || c.Status == http.StatusUnauthorized {
			a.Errorf("denied with %d: %s %s (%s)", c.Status, c.Verb, c.Resource, c.Path)
		}
	}
	role, clusterRole := ofKind[rbacv1.Role](a.T, all, "Role"), ofKind[rbacv1.ClusterRole](a.T, all, "ClusterRole")
	if unused := unusedOf(append(role.Rules, clusterRole.Rules...), calls); len(unused) > 0 {
		a.Errorf("the platform did not use %v", unused)
	}
}

// testWebhookIsProtected sends requests for the objects of the webhook as users with the permissions that tenants have.
func (a *api) testWebhookIsProtected() {
	all, _ := webhookComponent(a.T)
	a.applyObjects(append(all, documents(a.T, "tenant.yaml")...))
	const shop, admin = "shop", "admin-of-shop"
	_, err := a.kube.RbacV1().RoleBindings(shop).Create(a.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: admin},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: admin}},
	}, metav1.CreateOptions{})
	if err != nil {
		a.Fatal(err)
	}
	testkit.Eventually(a.T, timeout, func() error { // the API server reads roles from a cache
		_, err1 := a.as(admin).CoreV1().Secrets(shop).List(a.Context(), metav1.ListOptions{})
		_, err2 := a.as(serviceAccountUser(shop, "webapps")).CoreV1().ConfigMaps(shop).Get(a.Context(), "any",
			metav1.GetOptions{})
		if apierrors.IsNotFound(err2) {
			err2 = nil
		}
		errs := []error{err1, err2}
		for _, request := range webhookRequests(a.Context(), a.as(serviceAccountUser(namespace, name)))[:2] {
			errs = append(errs, request())
		}
		return errors.Join(errs...)
	})
	for _, user := range []string{admin, serviceAccountUser(shop, "webapps")} {
		for i, request := range webhookRequests(a.Context(), a.as(user)) {
			if err := request(); !apierrors.IsForbidden(err) {
				a.Errorf("%s, request %d: got %v, want Forbidden", user, i, err)
			}
		}
	}
}

// webhookRequests returns requests that read the certificate or change the webhook. The platform is allowed to send the
// first two.
func webhookRequests(ctx context.Context, user kubernetes.Interface) []func() error {
	secrets, configs := user.CoreV1().Secrets(namespace), user.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	patch := []byte(`{"metadata":{"labels":{"a":"b"}}}`)
	options := metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}
	remove := metav1.DeleteOptions{DryRun: options.DryRun}
	return []func() error{
		func() error { _, err := secrets.Get(ctx, hook, metav1.GetOptions{}); return err },
		func() error { _, err := configs.Patch(ctx, hook, types.MergePatchType, patch, options); return err },
		func() error { _, err := secrets.List(ctx, metav1.ListOptions{}); return err },
		func() error { _, err := secrets.Patch(ctx, hook, types.MergePatchType, patch, options); return err },
		func() error { return secrets.Delete(ctx, hook, remove) },
		func() error { _, err := configs.Get(ctx, hook, metav1.GetOptions{}); return err },
		func() error { return configs.Delete(ctx, hook, remove) },
		func() error {
			_, err := configs.Create(ctx, &admissionregistrationv1.ValidatingWebhookConfiguration{
				ObjectMeta: metav1.ObjectMeta{Name: "other"},
			}, metav1.CreateOptions{DryRun: options.DryRun})
			return err
		},
		func() error {
			_, err := user.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, &authenticationv1.TokenRequest{},
				metav1.CreateOptions{})
			return err
		},
		func() error { return user.CoreV1().Services(namespace).Delete(ctx, hook, remove) },
	}
}

// as returns a client for a user.
func (a *api) as(user string) kubernetes.Interface {
	a.Helper()
	cfg := a.cluster.Config()
	cfg.Impersonate.UserName = user
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		a.Fatal(err)
	}
	return client
}

func (a *api) patch(resource, name, text string) {
	a.Helper()
	_, err := a.dynamic.Resource(corev1.SchemeGroupVersion.WithResource(resource)).Namespace(namespace).Patch(a.Context(),
		name, types.MergePatchType, []byte(text), metav1.PatchOptions{})
	if err != nil {
		a.Fatal(err)
	}
}
