package install

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/restmapper"

	"github.com/google/go-cmp/cmp"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/serverfence"
	"github.com/dynamic-controller/engine/internal/testkit"
	"github.com/dynamic-controller/engine/test/cluster"
)

const timeout = time.Minute

// api contains administrator clients.
type api struct {
	*testing.T
	cluster *cluster.Cluster
	dynamic dynamic.Interface
	kube    kubernetes.Interface
}

// newAPI returns clients for a cluster with the namespace of the platform and the types of the Prometheus Operator.
func newAPI(t *testing.T) *api {
	t.Helper()
	c := shared.Cluster(t)
	dynamicClient, err1 := dynamic.NewForConfig(c.Config())
	kube, err2 := kubernetes.NewForConfig(c.Config())
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	a := &api{T: t, cluster: c, dynamic: dynamicClient, kube: kube}
	prepared := documents(t, read(t, "kustomize/namespace.yaml"))
	for _, obj := range append(prepared, documents(t, read(t, "testdata/monitoring-crds.yaml"))...) {
		testkit.Eventually(t, timeout, func() error { return a.apply(obj) }) // the namespace can be terminating
	}
	a.keepLeasesAsParameters()
	return a
}

// keepLeasesAsParameters installs a policy that applies to nothing, and never deletes it. Without a binding that has
// Leases as parameters, the API server would stop watching them when a test deletes the policy of the chart, and would
// not start again (see package serverfence).
func (a *api) keepLeasesAsParameters() {
	a.Helper()
	policy, binding, err1 := serverfence.Objects(serverfence.Options{
		Name: "leases-as-parameters", LeaseNamespace: "none", LeaseName: "none", Username: "none",
	})
	admission := a.kube.AdmissionregistrationV1()
	_, err2 := admission.ValidatingAdmissionPolicies().Create(a.Context(), policy, metav1.CreateOptions{})
	_, err3 := admission.ValidatingAdmissionPolicyBindings().Create(a.Context(), binding, metav1.CreateOptions{})
	for _, err := range []error{err1, err2, err3} {
		if err != nil && !apierrors.IsAlreadyExists(err) {
			a.Fatal(err)
		}
	}
}

// apply applies an object like kubectl apply --server-side.
func (a *api) apply(obj *unstructured.Unstructured) error {
	client, err := a.clientFor(obj)
	if err != nil {
		return err
	}
	data, err := obj.MarshalJSON()
	if err != nil {
		return err
	}
	_, err = client.Patch(a.Context(), obj.GetName(), types.ApplyPatchType, data,
		metav1.PatchOptions{FieldManager: "test", FieldValidation: metav1.FieldValidationStrict})
	return err
}

func (a *api) clientFor(obj *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	groups, err := restmapper.GetAPIGroupResources(a.kube.Discovery())
	if err != nil {
		return nil, err
	}
	gvk := obj.GroupVersionKind()
	mapping, err := restmapper.NewDiscoveryRESTMapper(groups).RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return nil, err
	}
	if mapping.Scope.Name() == meta.RESTScopeNameRoot {
		return a.dynamic.Resource(mapping.Resource), nil
	}
	return a.dynamic.Resource(mapping.Resource).Namespace(obj.GetNamespace()), nil
}

// applyAll applies objects and deletes them when the test ends. The next test can apply them again.
func (a *api) applyAll(objects []*unstructured.Unstructured) {
	a.Helper()
	for _, obj := range objects {
		testkit.Eventually(a.T, timeout, func() error { // the type of an object can be new
			err := a.apply(obj)
			if err != nil && !meta.IsNoMatchError(err) {
				a.Fatalf("%s %s: %v", obj.GetKind(), obj.GetName(), err)
			}
			return err
		})
		if obj.GetKind() != "Namespace" {
			a.Cleanup(func() { a.delete(obj) })
		}
	}
}

func (a *api) delete(obj *unstructured.Unstructured) {
	client, err := a.clientFor(obj)
	if err == nil {
		err = client.Delete(context.WithoutCancel(a.Context()), obj.GetName(), metav1.DeleteOptions{})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		a.Error(err)
	}
}

// namespaces returns Namespace objects.
func namespaces(t *testing.T, names ...string) (all []*unstructured.Unstructured) {
	t.Helper()
	for _, name := range names {
		all = append(all, documents(t, "{apiVersion: v1, kind: Namespace, metadata: {name: "+name+"}}")...)
	}
	return all
}

func TestManifests_OnAPIServer(t *testing.T) {
	var all []string
	for _, c := range components[1:] {
		all = append(all, c.name)
	}
	for name, objects := range map[string][]*unstructured.Unstructured{
		"the defaults of the chart":          rendered(t, nil),
		"the chart with everything enabled":  rendered(t, values(t, read(t, "testdata/everything.yaml"))),
		"the kustomization":                  kustomize(t, kustomizeDir),
		"the kustomization with components":  overlay(t, all...),
		"the kustomization of examples/kind": kustomize(t, "../examples/kind"),
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t)
			a.applyAll(append(namespaces(t, "shop", "team-a"), objects...))
			for _, obj := range objects {
				if err := a.apply(obj); err != nil { // applying it again must succeed
					t.Errorf("%s %s: %v", obj.GetKind(), obj.GetName(), err)
				}
			}
			a.requireRestrictedPod(only[appsv1.Deployment](t, objects, "Deployment").Spec.Template)
		})
	}
}

// requireRestrictedPod checks that the namespace, which enforces the restricted level, accepts the Pod.
func (a *api) requireRestrictedPod(template corev1.PodTemplateSpec) {
	a.Helper()
	create := func(spec corev1.PodSpec) error {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "dry", Labels: template.Labels}, Spec: spec}
		_, err := a.kube.CoreV1().Pods(namespace).Create(a.Context(), pod, metav1.CreateOptions{
			DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict})
		return err
	}
	if err := create(template.Spec); err != nil {
		a.Error(err)
	}
	wrong := *template.Spec.DeepCopy()
	wrong.SecurityContext = nil
	if err := create(wrong); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "PodSecurity") {
		a.Errorf("a Pod without a security context: got the error %v", err)
	}
}

func TestServiceMonitor_HasTheFieldsOfPrometheusOperator(t *testing.T) {
	objects := rendered(t, values(t, components[1].values))
	endpoint := only[monitoringv1.ServiceMonitor](t, objects, "ServiceMonitor").Spec.Endpoints[0]
	service := only[corev1.Service](t, objects, "Service")
	if endpoint.Port != service.Spec.Ports[0].Name ||
		*endpoint.TLSConfig.ServerName != fmt.Sprintf("%s.%s.svc", service.Name, namespace) {
		t.Errorf("the ServiceMonitor %+v does not match the Service %+v", endpoint, service.Spec)
	}
	only[monitoringv1.ServiceMonitor](t, rendered(t, values(t, read(t, "testdata/everything.yaml"))), "ServiceMonitor")
}

func TestPrometheusRule_ContainsTheAlerts(t *testing.T) {
	rule := only[monitoringv1.PrometheusRule](t, rendered(t, values(t, components[1].values)), "PrometheusRule")
	want := typed[monitoringv1.PrometheusRule](t, documents(t, read(t, alertsFile))[0])
	if diff := cmp.Diff(want.Spec, rule.Spec); diff != "" {
		t.Errorf("the PrometheusRule differs from %s: run make manifests (-file +chart)\n%s", alertsFile, diff)
	}
}
