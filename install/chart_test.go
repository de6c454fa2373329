package install

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	appsv1 "k8s.io/api/apps/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

const (
	namespace = "dynamic-controller-system"
	name      = "dynamic-controller"
	chartDir  = "charts/dynamic-controller"
)

// values returns the values in a text.
func values(t *testing.T, text string) map[string]any {
	t.Helper()
	all := map[string]any{}
	if err := yaml.UnmarshalStrict([]byte(text), &all); err != nil {
		t.Fatal(err)
	}
	return all
}

func read(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// render returns the output of each template of the chart, by the name of its file. Helm does the same for "helm
// template" with the name of the platform as the name of the release.
func render(values map[string]any) (map[string]string, error) { return renderIn(namespace, values) }

// renderIn is like render for a release in another namespace.
func renderIn(namespace string, values map[string]any) (map[string]string, error) {
	chart, err := loader.LoadDir(chartDir)
	if err != nil {
		return nil, err
	}
	release := common.ReleaseOptions{Name: name, Namespace: namespace, IsInstall: true, Revision: 1}
	top, err := util.ToRenderValues(chart, values, release, common.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	rendered, err := engine.Render(chart, top)
	if err != nil {
		return nil, err
	}
	files := map[string]string{}
	for file, text := range rendered {
		if text = strings.TrimSpace(text); text != "" {
			files[path.Base(file)] = text + "\n"
		}
	}
	return files, nil
}

// rendered returns the objects of the chart, in the order of the files.
func rendered(t *testing.T, values map[string]any) []*unstructured.Unstructured {
	t.Helper()
	return renderedIn(t, namespace, values)
}

// renderedIn is like rendered for a release in another namespace.
func renderedIn(t *testing.T, namespace string, values map[string]any) (all []*unstructured.Unstructured) {
	t.Helper()
	files, err := renderIn(namespace, values)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range slices.Sorted(maps.Keys(files)) {
		if path.Ext(file) == ".yaml" {
			all = append(all, documents(t, files[file])...)
		}
	}
	return all
}

func documents(t *testing.T, text string) (all []*unstructured.Unstructured) {
	t.Helper()
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader([]byte(text)), 4096)
	for {
		obj := &unstructured.Unstructured{}
		err := decoder.Decode(&obj.Object)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		if len(obj.Object) > 0 {
			all = append(all, obj)
		}
	}
}

// typed returns an object as its Go type, and fails the test if it has unknown fields.
func typed[T any](t *testing.T, obj *unstructured.Unstructured) *T {
	t.Helper()
	v := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(obj.Object, v, true); err != nil {
		t.Fatalf("%s %s: %v", obj.GetKind(), obj.GetName(), err)
	}
	return v
}

// only returns the only object of a kind.
func only[T any](t *testing.T, objects []*unstructured.Unstructured, kind string) *T {
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

func TestChart_PassesHelmLint(t *testing.T) {
	for _, file := range []string{"", "testdata/everything.yaml"} {
		override := map[string]any{}
		if file != "" {
			override = values(t, read(t, file))
		}
		linter := lint.RunAll(chartDir, override, namespace)
		for _, message := range linter.Messages {
			// A chart without an icon is fine.
			if message.Severity > support.InfoSev || !strings.Contains(message.Error(), "icon is recommended") {
				t.Errorf("values %q: %v", file, message)
			}
		}
	}
}

func TestChart_ReportsInvalidValues(t *testing.T) {
	for _, test := range []struct{ values, want string }{
		{"replicaCount: 3", "at '': additional properties 'replicaCount' not allowed"},
		{"replicas: two", "at '/replicas': got string, want integer"},
		{"replicas: -1", "at '/replicas': minimum: got -1, want 0"},
		{"antiAffinity: hard", "at '/antiAffinity': value must be one of 'preferred', 'required', 'none'"},
		{"namespaces: shop", "at '/namespaces': got string, want array"},
		{"namespaces: [Shop]", "at '/namespaces/0': 'Shop' does not match pattern"},
		{"namespaces: [shop, shop]", "at '/namespaces': items at 0 and 1 are equal"},
		{"extraArgs: [workers=3]", "at '/extraArgs/0': 'workers=3' does not match pattern"},
		{"extraArgs: [--leader-elect-resource-name=a]",
			"extraArgs: --leader-elect-resource-name=a: the Roles of the chart permit only the default name"},
		{"extraArgs: [--webhook-name, a]", "at '/extraArgs/1': 'a' does not match pattern"},
		{"extraArgs: [--webhook-name]", "extraArgs: --webhook-name: the Roles of the chart permit only the default name"},
		{"extraEnv: [{name: POD_NAME, value: a}]", "at '/extraEnv/0/name'"},
		{"configuration: {kind: Other}", "configuration.kind: is set by the chart"},
		{"image: {digest: latest}", "at '/image/digest': 'latest' does not match pattern"},
		{"image: {repository: ''}", "at '/image/repository': minLength: got 0, want 1"},
		{"resources: {limit: {memory: 1Gi}}", "at '/resources': additional properties 'limit' not allowed"},
		{"permissions: [{resources: [pods], verbs: [get]}]", "at '/permissions/0': missing property 'apiGroups'"},
		{"flowControl: {identities: [{namespace: shop}]}", "at '/flowControl/identities/0': missing property 'name'"},
		{"serverFence: {action: Warn}", "at '/serverFence/action': value must be one of 'Deny', 'Audit'"},
		{"serverFence: {action: [Audit]}", "at '/serverFence/action'"},
		{"serverFence: {excludeAPIGroups: ['']}", "at '/serverFence/excludeAPIGroups/0'"},
		{"{serverFence: {enabled: true}, extraArgs: [--leader-elect=false]}",
			"extraArgs: --leader-elect=false: cannot be combined with serverFence"},
		{"{serverFence: {enabled: true}, extraArgs: [--leader-elect-resource-namespace=a]}",
			"extraArgs: --leader-elect-resource-namespace=a: cannot be combined with serverFence"},
		{"{serverFence: {enabled: true}, configuration: {leaderElection: {resourceNamespace: a}}}",
			"configuration.leaderElection.resourceNamespace: cannot be combined with serverFence"},
		{"networkPolicy: {apiServer: {ports: [https]}}", "at '/networkPolicy/apiServer/ports/0': got string, want integer"},
		{"metrics: {serviceMonitor: {credentials: {name: a}}}", "at '/metrics/serviceMonitor/credentials'"},
		{"metrics: {serviceMonitor: {enabled: true}}", "metrics.serviceMonitor.enabled: requires metrics.tlsSecret, so that"},
		{"metrics: {enabled: false, prometheusRule: {enabled: true}}",
			"metrics.prometheusRule.enabled: requires metrics.enabled"},
		{"metrics: {enabled: false, serviceMonitor: {enabled: true}}",
			"metrics.serviceMonitor.enabled: requires metrics.enabled"},
		{"metrics: {enabled: false, tlsSecret: a}", "metrics.tlsSecret: requires metrics.enabled"},
	} {
		if _, err := render(values(t, test.values)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got the error %v, want %q", test.values, err, test.want)
		}
	}
}

// Values without a schema would not be checked.
func TestChart_SchemaHasAllValues(t *testing.T) {
	type schema struct {
		Properties           map[string]schema
		AdditionalProperties any
	}
	var top schema
	if err := yaml.Unmarshal([]byte(read(t, filepath.Join(chartDir, "values.schema.json"))), &top); err != nil {
		t.Fatal(err)
	}
	var check func(where string, s schema, defaults map[string]any)
	check = func(where string, s schema, defaults map[string]any) {
		if len(s.Properties) > 0 && s.AdditionalProperties != false {
			t.Errorf("the schema of %q accepts unknown values", where)
		}
		for key := range s.Properties {
			if _, ok := defaults[key]; !ok && key != "global" && where != ".metrics.serviceMonitor.credentials" &&
				where != ".resources" {
				t.Errorf("%s.%s has no default", where, key)
			}
		}
		for key, value := range defaults {
			of, ok := s.Properties[key]
			if inner, isObject := value.(map[string]any); ok && isObject && len(of.Properties) > 0 {
				check(where+"."+key, of, inner)
			}
		}
	}
	check("", top, values(t, read(t, filepath.Join(chartDir, "values.yaml"))))
}

func TestNetworkPolicy_AllowsEveryPortOfTheContainer(t *testing.T) {
	objects := rendered(t, values(t, read(t, "testdata/everything.yaml")))
	open := map[string]bool{}
	for _, rule := range only[networkingv1.NetworkPolicy](t, objects, "NetworkPolicy").Spec.Ingress {
		for _, port := range rule.Ports {
			open[port.Port.String()] = len(rule.From) > 0
		}
	}
	container := only[appsv1.Deployment](t, objects, "Deployment").Spec.Template.Spec.Containers[0]
	for _, port := range container.Ports {
		if limited, ok := open[port.Name]; !ok || !limited {
			t.Errorf("the port %s is allowed: %v, for the peers in the values: %v", port.Name, ok, limited)
		}
		delete(open, port.Name)
	}
	if len(open) > 0 {
		t.Errorf("the container does not have the ports %v", open)
	}
}
