package integration

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/children"
)

var (
	services    = schema.GroupVersionResource{Version: "v1", Resource: "services"}
	deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
)

// converging reconciles one child, which it reads from the API server.
type converging struct {
	*setting
	parent     *unstructured.Unstructured
	reconciler *children.Reconciler
	writes     *writeCounter
	retain     bool // whether the child is retained
	immutable  children.OnImmutable
	result     children.Result // of the last reconcile
}

func newConverging(t *testing.T) *converging {
	s := newSetting(newHarness(t))
	for _, kind := range []schema.GroupKind{{Kind: "Service"}, {Group: "apps", Kind: "Deployment"},
		{Group: "rbac.authorization.k8s.io", Kind: "Role"}} {
		s.moreKinds = append(s.moreKinds, children.Kind{GroupKind: kind})
	}
	c := &converging{setting: s, writes: &writeCounter{}}
	c.reconciler = s.newReconciler(children.Config{Client: must(dynamic.NewForConfig(c.writes.wrap(s.config)))})
	c.parent = s.put(s.parents, newObject(s.parents, "Platform", s.namespace, "p", nil))
	return c
}

// reconcile reconciles the child, and returns the number of write requests.
func (c *converging) reconcile(child *unstructured.Unstructured) (writes int64, err error) {
	c.Helper()
	before, desired := c.writes.Load(), oneStage(child)
	desired.Stages[0][0].Retain, desired.Stages[0][0].OnImmutable = c.retain, c.immutable
	c.result, err = c.reconciler.Reconcile(c.Context(), c.id(c.parents, "p"), c.parent, desired)
	return c.writes.Load() - before, err
}

// settle reconciles the child, and fails if this has an error or if a second reconcile writes.
func (c *converging) settle(child *unstructured.Unstructured) {
	c.Helper()
	writes, err := c.reconcile(child)
	c.noError(err)
	c.Logf("converged with %d writes", writes)
	if writes, err := c.reconcile(child); err != nil || writes != 0 {
		c.Fatalf("the second reconcile sent %d writes: %v", writes, err)
	}
}

// edit changes an object with a JSON patch.
func (c *converging) edit(manager string, gvr schema.GroupVersionResource, name, patch string) {
	c.Helper()
	_, err := c.in(gvr, c.namespace).Patch(c.Context(), name, types.JSONPatchType, []byte(patch),
		metav1.PatchOptions{FieldManager: manager})
	c.noError(err)
}

func (c *converging) parse(text string) *unstructured.Unstructured {
	c.Helper()
	object := &unstructured.Unstructured{}
	c.noError(yaml.Unmarshal([]byte(text), object))
	return object
}

// namesAt returns the given field of each item of a list.
func namesAt(object *unstructured.Unstructured, field string, path ...string) string {
	value := any(object.Object)
	for _, name := range path {
		if items, isList := value.([]any); isList {
			value = items[0]
		}
		value = value.(map[string]any)[name]
	}
	var names []string
	items, _ := value.([]any)
	for _, item := range items {
		if fields, isMap := item.(map[string]any); isMap {
			item = fields[field]
		}
		names = append(names, fmt.Sprint(item))
	}
	return strings.Join(names, ",")
}

const (
	shopService = `
apiVersion: v1
kind: Service
metadata: {name: shop}
spec: {selector: {app: x}, ports: [{port: 80}]}
`
	shopDeployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: shop}
spec:
  selector: {matchLabels: {app: x}}
  template:
    metadata: {labels: {app: x}}
    spec:
      volumes: [{name: data, emptyDir: {}}]
      containers:
      - name: web
        image: nginx
        ports: [{containerPort: 80, name: http}]
        env: [{name: A, value: "1"}, {name: B, value: "2"}]
        volumeMounts: [{name: data, mountPath: /data}]
`
	containers = "/spec/template/spec/containers"
)

var containersPath = []string{"spec", "template", "spec", "containers"}

// An item whose key was edited is put back, and the edited item is removed. Items that others added stay.
func TestHandlers_EditedListKeys(t *testing.T) {
	for name, test := range map[string]struct {
		gvr         schema.GroupVersionResource
		child, edit string
		field       string
		path        []string
		want        string
	}{
		"the port of a Service": {services, shopService,
			`[{"op": "replace", "path": "/spec/ports/0/port", "value": 8080}]`, "port", []string{"spec", "ports"}, "80"},
		"the port of a container": {deployments, shopDeployment,
			`[{"op": "replace", "path": "` + containers + `/0/ports/0/containerPort", "value": 8080}]`,
			"containerPort", append(containersPath[:4:4], "ports"), "80"},
		"the name of a container": {deployments, shopDeployment,
			`[{"op": "replace", "path": "` + containers + `/0/name", "value": "other"}]`, "name", containersPath, "web"},
		"the name of a variable": {deployments, shopDeployment,
			`[{"op": "replace", "path": "` + containers + `/0/env/0/name", "value": "C"}]`,
			"name", append(containersPath[:4:4], "env"), "A,B"},
		"the path of a mount": {deployments, shopDeployment,
			`[{"op": "replace", "path": "` + containers + `/0/volumeMounts/0/mountPath", "value": "/other"}]`,
			"mountPath", append(containersPath[:4:4], "volumeMounts"), "/data"},
		"an added container": {deployments, shopDeployment,
			`[{"op": "add", "path": "` + containers + `/-", "value": {"name": "sidecar", "image": "nginx"}}]`,
			"name", containersPath, "web,sidecar"},
		"a variable is replaced by another one": {deployments, shopDeployment,
			`[{"op": "replace", "path": "` + containers + `/0/env/0", "value": {"name": "C", "value": "3"}}]`,
			"name", append(containersPath[:4:4], "env"), "A,B,C"},
		"an added variable, and a removed one": {deployments, shopDeployment,
			`[{"op": "add", "path": "` + containers + `/0/env/-", "value": {"name": "C", "value": "3"}},
			  {"op": "remove", "path": "` + containers + `/0/env/0"}]`,
			"name", append(containersPath[:4:4], "env"), "A,B,C"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newConverging(t)
			child := c.parse(test.child)
			c.settle(child)
			c.edit("kubectl-edit", test.gvr, "shop", test.edit)
			c.settle(child)
			now := c.get(test.gvr, c.namespace, "shop")
			if got := sortedNames(namesAt(now, test.field, test.path...)); got != sortedNames(test.want) {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

func sortedNames(list string) string {
	names := strings.Split(list, ",")
	slices.Sort(names)
	return strings.Join(names, ",")
}

// An item of others that looks like an edited one stays if it existed before, or if it is not the only one.
func TestHandlers_ItemsOfOthersStay(t *testing.T) {
	env := append(containersPath[:4:4], "env")
	for name, edits := range map[string][]string{
		"an item that existed before": {
			`[{"op": "add", "path": "` + containers + `/0/env/-", "value": {"name": "C", "value": "1"}}]`,
			`[{"op": "remove", "path": "` + containers + `/0/env/0"}]`,
		},
		"several items": {
			`[{"op": "add", "path": "` + containers + `/0/env/-", "value": {"name": "C", "value": "1"}},
			  {"op": "add", "path": "` + containers + `/0/env/-", "value": {"name": "D", "value": "1"}},
			  {"op": "remove", "path": "` + containers + `/0/env/0"}]`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newConverging(t)
			child := c.parse(shopDeployment)
			c.settle(child)
			for _, edit := range edits {
				c.edit("kubectl-edit", deployments, "shop", edit)
				c.settle(child)
			}
			want := map[bool]string{true: "A,B,C", false: "A,B,C,D"}[len(edits) == 2]
			if got := sortedNames(namesAt(c.get(deployments, c.namespace, "shop"), "name", env...)); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
			reason := map[bool]string{true: "", false: children.ReasonUndesiredItem}[len(edits) == 2]
			if got := c.result.Children[0]; got.Reason != reason {
				t.Errorf("got %+v, want the reason %q", got, reason)
			}
		})
	}
}

// An edited item is given back to its owner if the API server refuses the child without it, too.
func TestHandlers_FutileRepairsAreUndone(t *testing.T) {
	t.Parallel()
	c := newConverging(t)
	child := c.parse(shopService)
	c.settle(child)
	c.edit("kubectl-edit", services, "shop", `[{"op": "replace", "path": "/spec/ports/0/port", "value": 8080}]`)
	c.noError(unstructured.SetNestedSlice(child.Object,
		[]any{map[string]any{"port": int64(80), "name": "Not a name"}}, "spec", "ports"))
	writes := make([]int64, 3)
	for i := range writes {
		var err error
		if writes[i], err = c.reconcile(child); !apierrors.IsInvalid(err) {
			t.Fatalf("got %v", err)
		}
	}
	if writes[0] != 4 || writes[2] != 1 {
		t.Errorf("the reconciles sent %v writes", writes)
	}
	now := c.get(services, c.namespace, "shop")
	owners := map[string]bool{}
	for _, entry := range now.GetManagedFields() {
		if strings.Contains(string(entry.FieldsV1.GetRawBytes()), "8080") {
			owners[entry.Manager] = true
		}
	}
	if got := namesAt(now, "port", "spec", "ports"); got != "8080" || len(owners) != 1 || !owners["kubectl-edit"] {
		t.Errorf("got the ports %s, and the owners %v", got, owners)
	}
	c.settle(c.parse(shopService))
}

// A field that leaves the template is removed, even if a tool has cleared the managedFields before.
func TestHandlers_ClearedManagedFields(t *testing.T) {
	c := newConverging(t)
	child := newConfigMap(c.namespace, "page", "x")
	c.noError(unstructured.SetNestedField(child.Object, "y", "data", "drop"))
	c.settle(child)
	c.merge(configMaps, c.namespace, "page", `{"metadata": {"managedFields": [{}]}, "data": {"foreign": "z"}}`)
	c.settle(child)
	unstructured.RemoveNestedField(child.Object, "data", "drop")
	c.settle(child)
	now := c.get(configMaps, c.namespace, "page")
	if data := fmt.Sprint(now.Object["data"]); data != "map[foreign:z key:x]" {
		t.Errorf("the data is %s", data)
	}
}

// An item from before the managedFields were cleared is not taken for an edited one, not even by the next leader.
func TestHandlers_ItemsFromBeforeClearedManagedFieldsStay(t *testing.T) {
	t.Parallel()
	c := newConverging(t)
	child := c.parse(shopDeployment)
	c.settle(child)
	c.edit("user", deployments, "shop",
		`[{"op": "add", "path": "`+containers+`/0/env/-", "value": {"name": "C", "value": "1"}}]`)
	c.merge(deployments, c.namespace, "shop", `{"metadata": {"managedFields": [{}]}}`)
	c.settle(child)
	c.reconciler = c.newReconciler(children.Config{Client: must(dynamic.NewForConfig(c.writes.wrap(c.config)))})
	c.edit("user", deployments, "shop", `[{"op": "remove", "path": "`+containers+`/0/env/0"}]`)
	c.settle(child)
	now := c.get(deployments, c.namespace, "shop")
	if got := sortedNames(namesAt(now, "name", append(containersPath[:4:4], "env")...)); got != "A,B,C" {
		t.Errorf("got %s", got)
	}
}

// versionOf returns a version of a CRD whose spec has the given fields.
func versionOf(name string, served, storage bool, fields ...string) apiextensionsv1.CustomResourceDefinitionVersion {
	properties := map[string]apiextensionsv1.JSONSchemaProps{}
	for _, field := range fields {
		properties[field] = apiextensionsv1.JSONSchemaProps{Type: "string"}
	}
	return apiextensionsv1.CustomResourceDefinitionVersion{
		Name: name, Served: served, Storage: storage,
		Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
			Type:       "object",
			Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": {Type: "object", Properties: properties}},
		}},
	}
}

// things defines a type whose only version is v1alpha1, and returns the name of its CRD.
func (c *converging) things() (name string, old, now schema.GroupVersionResource) {
	c.Helper()
	crd := newCRD(c.namespace+".example.com", "things", "thing", "Thing", "v1alpha1")
	crd.Spec.Scope = apiextensionsv1.NamespaceScoped
	crd.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{versionOf("v1alpha1", true, true, "num")}
	c.createCRD(crd)
	old = schema.GroupVersionResource{Group: crd.Spec.Group, Version: "v1alpha1", Resource: "things"}
	c.mapper, _ = c.mapperOf(c.parents, c.gadgets, old)
	c.moreKinds = append(c.moreKinds, children.Kind{GroupKind: schema.GroupKind{Group: crd.Spec.Group, Kind: "Thing"}})
	c.reconciler = c.newReconciler(children.Config{Client: must(dynamic.NewForConfig(c.writes.wrap(c.config)))})
	return crd.Name, old, old.GroupResource().WithVersion("v1")
}

func (c *converging) settleThing(gvr schema.GroupVersionResource, spec map[string]any) {
	c.Helper()
	thing := newObject(gvr, "Thing", c.namespace, "one", spec)
	c.eventually("the thing is applied as "+gvr.Version, func() error {
		_, err := c.reconcile(thing)
		return err
	})
	c.settle(thing)
}

// A template moves to a version with a field that the old version lacks, and the old version is removed. managedFields
// of others still name it.
func TestHandlers_ChangedVersions(t *testing.T) {
	for name, remove := range map[string]bool{"the old version is served": false, "the old version is removed": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newConverging(t)
			crd, old, latest := c.things()
			c.settleThing(old, map[string]any{"num": "1"})
			c.merge(old, c.namespace, "one", `{"metadata": {"labels": {"by": "hand"}}}`)
			c.updateCRD(crd, func(crd *apiextensionsv1.CustomResourceDefinition) {
				crd.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{
					versionOf("v1alpha1", true, false, "num"), versionOf("v1", true, true, "num", "more"),
				}
			})
			c.mapperOf(latest)
			if remove {
				c.eventually("the object is stored as v1", func() error {
					_, err := c.in(latest, c.namespace).Patch(c.Context(), "one", types.MergePatchType,
						[]byte(`{"metadata": {"annotations": {"migrated": "yes"}}}`), metav1.PatchOptions{FieldManager: "migrator"})
					return err
				})
				_, err := c.crds.ApiextensionsV1().CustomResourceDefinitions().Patch(c.Context(), crd, types.MergePatchType,
					[]byte(`{"status": {"storedVersions": ["v1"]}}`), metav1.PatchOptions{}, "status")
				c.noError(err)
				c.updateCRD(crd, func(crd *apiextensionsv1.CustomResourceDefinition) {
					crd.Spec.Versions = crd.Spec.Versions[1:]
				})
			}
			c.settleThing(latest, map[string]any{"num": "2", "more": "x"})
			c.merge(latest, c.namespace, "one", `{"spec": {"num": "weeds"}}`)
			c.settleThing(latest, map[string]any{"num": "2", "more": "x"})
			c.settleThing(latest, map[string]any{"num": "2"})
			now := c.get(latest, c.namespace, "one")
			if spec := fmt.Sprint(now.Object["spec"]); spec != "map[num:2]" || now.GetLabels()["by"] != "hand" {
				t.Errorf("the spec is %s, and the labels are %v", spec, now.GetLabels())
			}
		})
	}
}

// A list that was owned as a whole becomes a list whose items are owned one by one.
func TestHandlers_AtomicListsBecomeGranular(t *testing.T) {
	for listType, item := range map[string]func(string) any{
		"map": func(name string) any { return map[string]any{"name": name} },
		"set": func(name string) any { return name },
	} {
		t.Run(listType, func(t *testing.T) {
			t.Parallel()
			c := newConverging(t)
			crd, gvr, _ := c.things()
			setList := func(listType *string, keys ...string) {
				c.updateCRD(crd, func(crd *apiextensionsv1.CustomResourceDefinition) {
					text := apiextensionsv1.JSONSchemaProps{Type: "string"}
					items := text
					if _, isText := item("").(string); !isText {
						items = apiextensionsv1.JSONSchemaProps{
							Type: "object", Required: []string{"name"},
							Properties: map[string]apiextensionsv1.JSONSchemaProps{"name": text},
						}
					}
					spec := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
					spec.Properties = map[string]apiextensionsv1.JSONSchemaProps{"num": text, "list": {
						Type: "array", XListType: listType, XListMapKeys: keys,
						Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &items},
					}}
					crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"] = spec
				})
			}
			setList(ptr.To("atomic"))
			c.settleThing(gvr, map[string]any{"list": []any{item("a"), item("b")}, "num": "1"})
			keys := []string{"name"}
			if listType == "set" {
				keys = nil
			}
			setList(ptr.To(listType), keys...)
			// The schema is in use when the API server rejects a duplicate.
			c.eventually("the new schema is in use", func() error {
				twice := newObject(gvr, "Thing", c.namespace, "twice", map[string]any{"list": []any{item("a"), item("a")}})
				_, err := c.in(gvr, c.namespace).Create(c.Context(), twice,
					metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
				if err == nil {
					return fmt.Errorf("a duplicate is accepted")
				}
				return nil
			})
			c.settleThing(gvr, map[string]any{"list": []any{item("a")}, "num": "1"})
			now := c.get(gvr, c.namespace, "one")
			if got := namesAt(now, "name", "spec", "list"); got != "a" {
				t.Errorf("the items are %s", got)
			}
		})
	}
}

// A field that another client changes again and again is corrected at once a few times, and then slowly.
func TestHandlers_BudgetForDrift(t *testing.T) {
	t.Parallel()
	c := newConverging(t)
	child := newConfigMap(c.namespace, "page", "x")
	c.settle(child)
	fight := func() (int64, error) {
		c.edit("fighter", configMaps, "page", `[{"op": "replace", "path": "/data/key", "value": "mine"}]`)
		return c.reconcile(child)
	}
	for i := range 5 {
		if writes, err := fight(); err != nil || writes != 1 {
			t.Fatalf("correction %d: %d writes, %v", i, writes, err)
		}
	}
	writes, err := fight()
	drift := c.result.Children[0]
	if drift.Outcome != children.OutcomeDrifting || drift.Field != "data.key" || drift.Manager != "fighter" ||
		writes != 0 {
		t.Fatalf("got %d writes, %+v and %v", writes, drift, err)
	}
	if wait, requeued := dynamiccontroller.RequeueDelay(err); !requeued || wait <= 0 || wait > 10*time.Second {
		t.Errorf("the next attempt is in %s", wait)
	}
	c.eventually("the last change is corrected", func() error {
		_, err := c.reconcile(child)
		return err
	})
	c.settle(child)
}

// The budget does not apply to permissions.
func TestHandlers_DriftOfPermissionsIsNotDelayed(t *testing.T) {
	t.Parallel()
	c := newConverging(t)
	roles := schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles"}
	child := c.parse(`{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: reader},
		rules: [{apiGroups: [""], resources: [pods], verbs: [get]}]}`)
	c.settle(child)
	for range 8 {
		c.edit("fighter", roles, "reader", `[{"op": "replace", "path": "/rules/0/verbs", "value": ["*"]}]`)
		c.settle(child)
	}
}

// A child whose update is refused delays neither later stages nor pruning.
func TestHandlers_RefusedUpdates(t *testing.T) {
	t.Parallel()
	c := newConverging(t)
	fixed, other := newConfigMap(c.namespace, "fixed", "x"), newConfigMap(c.namespace, "other", "x")
	fixed.Object["immutable"] = true
	reconcile := func(stages ...[]children.Child) (err error) {
		c.result, err = c.reconciler.Reconcile(c.Context(), c.id(c.parents, "p"), c.parent, children.Desired{Stages: stages})
		return err
	}
	c.noError(reconcile(children.Stage(fixed, other), nil))
	c.noError(unstructured.SetNestedField(fixed.Object, "y", "data", "key"))
	later := newConfigMap(c.namespace, "later", "x")
	err := reconcile(children.Stage(fixed), children.Stage(later))
	failed := c.result.Children[0]
	if failed.Outcome != children.OutcomeRefused || failed.NamespacedKey != c.namespace+"/fixed" ||
		!apierrors.IsInvalid(err) {
		t.Fatalf("got %+v and %v", failed, err)
	}
	if c.get(configMaps, c.namespace, "later") == nil {
		t.Error("the later stage was not applied")
	}
	c.eventually("the other child is pruned", func() error {
		if err := reconcile(children.Stage(fixed), children.Stage(later)); !apierrors.IsInvalid(err) {
			return fmt.Errorf("got %w", err)
		}
		if now := c.get(configMaps, c.namespace, "other"); now != nil {
			return errors.New("it exists")
		}
		return nil
	})
}
