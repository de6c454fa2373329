package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

const (
	examplesDir = "../../examples/blueprints"
	// examplesPlatform is the namespace of the platform in install/kustomize, and examplesAccount is its ServiceAccount.
	examplesPlatform, examplesAccount = "dynamic-controller-system", "dynamic-controller"
)

// exampleFiles contains the files in examples/blueprints and the checks of their instances.
var exampleFiles = map[string]func(*examples){
	"webapp/operator.yaml":        nil,
	"webapp/namespace.yaml":       nil,
	"webapp/blueprint.yaml":       nil,
	"webapp/instance.yaml":        (*examples).checkWebApp,
	"tenant/operator.yaml":        nil,
	"tenant/account.yaml":         nil,
	"tenant/blueprint.yaml":       nil,
	"tenant/instance.yaml":        (*examples).checkTenant,
	"database/operator.yaml":      nil,
	"database/namespace.yaml":     nil,
	"database/backup.yaml":        nil,
	"database/blueprint.yaml":     nil,
	"database/instance.yaml":      (*examples).checkDatabase,
	"from-kro/blueprint.yaml":     (*examples).checkFromKro,
	"features/operator.yaml":      nil,
	"features/namespace.yaml":     nil,
	"features/collection.yaml":    (*examples).checkCollection,
	"features/existing-type.yaml": (*examples).checkExistingType,
	"features/functions.yaml":     (*examples).checkFunctions,
	"features/kept.yaml":          (*examples).checkKept,
	"features/order.yaml":         (*examples).checkOrder,
	"features/paused.yaml":        (*examples).checkPaused,
	"features/reference.yaml":     (*examples).checkReference,
	"features/retain.yaml":        (*examples).checkRetain,
	"features/schema.yaml":        (*examples).checkSchema,
	"features/status.yaml":        (*examples).checkStatus,
}

// examples applies the files in examples/blueprints as an administrator. The platform has the permissions from
// install/kustomize.
type examples struct {
	*api
	files map[string][]*unstructured.Unstructured // objects by file
}

// readExamples reads all files. They must be those in exampleFiles.
func readExamples(t *testing.T) map[string][]*unstructured.Unstructured {
	t.Helper()
	all := map[string][]*unstructured.Unstructured{}
	err := filepath.WalkDir(examplesDir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) == ".md" {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(examplesDir, path)
		all[filepath.ToSlash(name)] = (&api{T: t}).objects(string(data))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for file, objects := range all {
		check, expected := exampleFiles[file]
		if !expected || slices.ContainsFunc(objects, isInstance) != (check != nil) {
			t.Errorf("%s: add the expected state to exampleFiles", file)
		}
	}
	for file := range exampleFiles {
		if len(all[file]) == 0 {
			t.Errorf("%s: has no objects", file)
		}
	}
	return all
}

func isBlueprint(object *unstructured.Unstructured) bool {
	return object.GroupVersionKind() == blueprint.GroupVersionKind
}

// isInstance reports whether an example defines the type of the object.
func isInstance(object *unstructured.Unstructured) bool {
	return strings.HasSuffix(object.GroupVersionKind().Group, ".example.com") && !isBlueprint(object)
}

// each returns the matching objects in all files.
func (e *examples) each(matches func(*unstructured.Unstructured) bool) (all []*unstructured.Unstructured) {
	for _, file := range slices.Sorted(maps.Keys(e.files)) {
		for _, object := range e.files[file] {
			if matches(object) {
				all = append(all, object)
			}
		}
	}
	return all
}

// applyObject applies an object. It retries until the type is served.
func (e *examples) applyObject(object *unstructured.Unstructured) {
	e.Helper()
	text, err := yaml.Marshal(object.Object)
	if err != nil {
		e.Fatal(err)
	}
	e.apply(string(text))
}

// patch patches an object in the same way as kubectl patch --type=merge.
func (e *examples) patch(apiVersion, kind, name, patch string) error {
	e.Helper()
	object, err := e.get(apiVersion, kind, name)
	if err != nil {
		e.Fatal(err)
	}
	_, err = e.client(object).Patch(e.Context(), object.GetName(), types.MergePatchType, []byte(patch),
		metav1.PatchOptions{FieldManager: "kubectl", FieldValidation: metav1.FieldValidationStrict})
	return err
}

// change patches an object.
func (e *examples) change(apiVersion, kind, name, patch string) {
	e.Helper()
	if err := e.patch(apiVersion, kind, name, patch); err != nil {
		e.Fatal(err)
	}
}

// setStatus writes a part of the status in the same way as the controller of a built-in kind. It replaces GENERATION
// with the generation.
func (e *examples) setStatus(apiVersion, kind, name, status string) {
	e.Helper()
	object := e.wait(apiVersion, kind, name, exists)
	status = strings.ReplaceAll(status, "GENERATION", fmt.Sprint(object.GetGeneration()))
	_, err := e.client(object).Patch(e.Context(), object.GetName(), types.MergePatchType,
		[]byte(`{"status":`+status+`}`), metav1.PatchOptions{}, "status")
	if err != nil {
		e.Fatal(err)
	}
}

// setReplicas makes all replicas of a Deployment or a StatefulSet available.
func (e *examples) setReplicas(kind, name string, replicas int) {
	e.Helper()
	e.wait("apps/v1", kind, name, has(int64(replicas), "spec", "replicas"))
	e.setStatus("apps/v1", kind, name, fmt.Sprintf(`{"observedGeneration":GENERATION,"replicas":%[1]d,
		"updatedReplicas":%[1]d,"readyReplicas":%[1]d,"availableReplicas":%[1]d}`, replicas))
}

// startExamples applies everything except Blueprints and instances, and starts the platform.
func startExamples(t *testing.T) *examples {
	t.Helper()
	e := &examples{api: newAPI(t), files: readExamples(t)}
	prepared := e.each(func(object *unstructured.Unstructured) bool { return !isBlueprint(object) && !isInstance(object) })
	for _, file := range []string{"namespace.yaml", "rbac.yaml"} {
		data, err := os.ReadFile(filepath.Join("../../install/kustomize", file))
		if err != nil {
			t.Fatal(err)
		}
		prepared = append(prepared, e.objects(string(data))...)
	}
	order := map[string]int{"Namespace": -1} // created before the objects in them
	slices.SortStableFunc(prepared, func(x, y *unstructured.Unstructured) int {
		return cmp.Compare(order[x.GetKind()], order[y.GetKind()])
	})
	for _, object := range prepared {
		e.applyObject(object)
		if object.GetNamespace() == "" {
			t.Cleanup(func() { e.remove(object) })
		}
	}
	for _, object := range prepared {
		e.waitRole(object)
	}
	token, err := e.kube.CoreV1().ServiceAccounts(examplesPlatform).CreateToken(t.Context(), examplesAccount,
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cfg := e.cluster.Config()
	start(t, "run", "--namespace", examplesPlatform, "--leader-elect-resource-namespace", examplesPlatform,
		"--health-probe-bind-address", "127.0.0.1:0", "--kubeconfig", writeKubeconfig(t, &clientcmdapi.Cluster{
			Server: cfg.Host, CertificateAuthorityData: cfg.CAData, CertificateAuthority: cfg.CAFile}, token.Status.Token))
	return e
}

// remove deletes a cluster-scoped object. If it is a namespace, remove waits until it is deleted.
func (e *examples) remove(object *unstructured.Unstructured) {
	e.Helper()
	err := e.client(object).Delete(context.WithoutCancel(e.Context()), object.GetName(), metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		e.Error(err)
	}
	if object.GetKind() == "Namespace" {
		e.waitGone("v1", "Namespace", object.GetName())
	}
}

// releaseVolume removes the finalizer of the retained volume. This control plane has no controller that removes it.
func (e *examples) releaseVolume() {
	volumes := e.kube.CoreV1().PersistentVolumeClaims("example-data")
	_, err := volumes.Patch(context.WithoutCancel(e.Context()), "orders-backup", types.MergePatchType,
		[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		e.Error(err)
	}
}

// waitRole waits until a role has been aggregated for the platform.
func (e *examples) waitRole(object *unstructured.Unstructured) {
	e.Helper()
	if object.GetLabels()["platform.example.com/aggregate-to-dynamic-controller"] != "true" {
		return
	}
	var role rbacv1.ClusterRole
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &role); err != nil {
		e.Fatal(err)
	}
	e.waitAccess(examplesPlatform, examplesAccount, "", true, role.Rules...)
}

func TestExamples_WorkAsDocumented(t *testing.T) {
	e := startExamples(t)
	t.Cleanup(e.releaseVolume)
	blueprints, instances := e.each(isBlueprint), e.each(isInstance)
	for _, object := range blueprints {
		e.applyObject(object)
	}
	for _, object := range blueprints {
		e.wait(blueprintVersion, "Blueprint", object.GetName(), all(is("Accepted", "True"), is("Serving", "True")))
	}
	for _, object := range instances {
		e.applyObject(object)
	}
	for file, check := range exampleFiles {
		if check == nil {
			continue
		}
		t.Run(file, func(t *testing.T) {
			sub, admin := *e, *e.api
			sub.api, admin.T = &admin, t
			check(&sub)
		})
	}
	for _, object := range instances {
		e.delete(object.GetAPIVersion(), object.GetKind(), key(object))
	}
	for _, object := range instances {
		e.waitGone(object.GetAPIVersion(), object.GetKind(), key(object))
	}
	for _, object := range blueprints {
		e.delete(blueprintVersion, "Blueprint", object.GetName())
	}
	for _, object := range blueprints {
		e.waitGone(blueprintVersion, "Blueprint", object.GetName())
	}
	e.checkRemains()
}

// key returns the namespace and the name of an object.
func key(object *unstructured.Unstructured) string {
	if object.GetNamespace() == "" {
		return object.GetName()
	}
	return object.GetNamespace() + "/" + object.GetName()
}

// checkRemains waits until the only remaining children and types are those that the READMEs name.
func (e *examples) checkRemains() {
	e.Helper()
	want := []string{
		"configmaps example-features/diary-pages",
		"customresourcedefinitions parcels.features.example.com",
		"customresourcedefinitions tenants.tenancy.example.com",
		"persistentvolumeclaims example-data/orders-backup",
	}
	eventually(e.T, func() error {
		var got []string
		for _, gvr := range []schema.GroupVersionResource{
			{Version: "v1", Resource: "configmaps"}, {Version: "v1", Resource: "services"},
			{Version: "v1", Resource: "persistentvolumeclaims"}, {Version: "v1", Resource: "namespaces"},
			{Group: "apps", Version: "v1", Resource: "deployments"},
			{Group: "apps", Version: "v1", Resource: "statefulsets"},
			{Group: "batch", Version: "v1", Resource: "cronjobs"},
			{Group: "networking.k8s.io", Version: "v1", Resource: "ingresses"},
			{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"},
		} {
			list, err := e.dynamic.Resource(gvr).List(e.Context(), metav1.ListOptions{})
			if err != nil {
				return err
			}
			for _, item := range list.Items {
				if e.isResult(&item) {
					got = append(got, gvr.Resource+" "+key(&item))
				}
			}
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			return fmt.Errorf("got remaining objects %q, want %q", got, want)
		}
		return nil
	})
}

// isResult reports whether the object is a child of an example, or its type.
func (e *examples) isResult(object *unstructured.Unstructured) bool {
	if object.GetKind() == "CustomResourceDefinition" {
		return slices.ContainsFunc(e.each(isBlueprint), func(b *unstructured.Unstructured) bool {
			return b.GetName() == object.GetName()
		})
	}
	// Other tests have namespaces whose names begin with test-.
	return object.GetLabels()["app.kubernetes.io/managed-by"] == "platform.example.com" &&
		!strings.HasPrefix(object.GetNamespace(), "test-")
}

// Blueprints in a directory can refer to each other, except those in features, where some files have none.
func TestExamples_AreValid(t *testing.T) {
	readExamples(t)
	paths := map[string]bool{}
	for file := range exampleFiles {
		path := filepath.Join(examplesDir, file)
		if filepath.Dir(file) != "features" {
			paths[filepath.Dir(path)] = true
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "kind: Blueprint") {
			paths[path] = true
		}
	}
	for path := range paths {
		if got := validate(t, "", path); got != "" {
			t.Errorf("%s: %s", path, got)
		}
	}
}

func TestExamples_AreRenderedAsDocumented(t *testing.T) {
	for dir, want := range map[string][]string{
		"webapp":   {"Deployment", "Service", "Ingress"},
		"tenant":   {"Namespace", "Namespace"},
		"database": {"Service", "StatefulSet"},
	} {
		var out, notes bytes.Buffer
		cmd := newCommand("dynamic-controller")
		cmd.SetArgs([]string{"render", filepath.Join(examplesDir, dir), filepath.Join(examplesDir, dir, "instance.yaml")})
		cmd.SetOut(&out)
		cmd.SetErr(&notes)
		if err := cmd.ExecuteContext(t.Context()); err != nil {
			t.Errorf("%s: %v", dir, err)
		}
		var got []string
		for _, object := range (&api{T: t}).objects(out.String()) {
			got = append(got, object.GetKind())
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: got children %q, want %q; notes: %s", dir, got, want, notes.String())
		}
	}
}
