package acceptance

import (
	"maps"
	"slices"
	"strconv"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdfake "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/fake"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/test/platformtest"
)

// cluster is a leader with fake engines. Its caches are updated from the API server by calling sync.
type cluster struct {
	*testController
	t      *testing.T
	server *platformtest.Server
	crds   *crdfake.Clientset
}

func newCluster(t *testing.T, b *blueprint.Blueprint) *cluster {
	t.Helper()
	p, _ := newTestController(nil, nil, wheel, brake)
	// The method survey, instead of a count, determines the instances.
	p.instances.ListErrs = map[schema.GroupVersionResource]error{websites: dynamiccontroller.ErrNotSynced}
	c := &cluster{testController: p, t: t, crds: crdfake.NewClientset()}
	c.server = platformtest.NewServer(nil)
	c.use(c.server, c.crds)
	if err := c.Serve(t.Context()); err != nil {
		t.Fatal(err)
	}
	object := asObject(t, b)
	object.SetGroupVersionKind(blueprint.GroupVersionKind)
	object.SetFinalizers([]string{finalizer})
	if err := c.server.Tracker().Add(object); err != nil {
		t.Fatal(err)
	}
	return c
}

// update changes the spec of the Blueprint.
func (c *cluster) update(b *blueprint.Blueprint) {
	c.t.Helper()
	object := asObject(c.t, b)
	object.SetGroupVersionKind(blueprint.GroupVersionKind)
	object.SetFinalizers([]string{finalizer})
	if err := c.server.Tracker().Update(blueprints, object, ""); err != nil {
		c.t.Fatal(err)
	}
}

// reconcile syncs the caches and runs both engines several times, until nothing is enqueued.
func (c *cluster) reconcile() {
	c.t.Helper()
	for range 4 {
		c.sync()
		c.engine.Enqueue(instances.BlueprintID("websites"))
		for len(c.engine.Enqueued)+len(c.instances.Enqueued) > 0 {
			for _, engine := range []*platformtest.Engine{c.engine, c.instances} {
				if _, err := engine.Run(c.t.Context()); err != nil {
					c.t.Fatal(err)
				}
			}
		}
	}
}

func (c *cluster) sync() {
	c.t.Helper()
	var secondary []any
	crds, err := c.crds.ApiextensionsV1().CustomResourceDefinitions().List(c.t.Context(), metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	for i := range crds.Items {
		secondary = append(secondary, &crds.Items[i])
	}
	revisions, err := c.server.Resource(controllerRevisions).Namespace("system").List(c.t.Context(), metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	for i := range revisions.Items {
		r, err := readRevision(&revisions.Items[i])
		if err != nil {
			c.t.Fatal(err)
		}
		secondary = append(secondary, r)
	}
	_ = c.engine.Secondary.Replace(secondary, "")
	object, err := c.server.Tracker().Get(blueprints, "", "websites")
	if err != nil {
		c.t.Fatal(err)
	}
	for _, engine := range []*platformtest.Engine{c.engine, c.instances} {
		_ = engine.Objects.Replace([]any{object}, "")
	}
}

func (c *cluster) crd() *apiextensionsv1.CustomResourceDefinition {
	c.t.Helper()
	crd, err := c.crds.ApiextensionsV1().CustomResourceDefinitions().Get(c.t.Context(), "websites.shop.example.com",
		metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return crd
}

func (c *cluster) served() bool { return c.instances.Handlers[websites] != nil }

func (c *cluster) condition(conditionType string) *metav1.Condition {
	c.t.Helper()
	object, err := c.server.Tracker().Get(blueprints, "", "websites")
	if err != nil {
		c.t.Fatal(err)
	}
	return instances.ConditionOf(object.(*unstructured.Unstructured), conditionType)
}

// withFields returns a generation of the Blueprint whose type has the given fields.
func withFields(generation int64, fields ...string) *blueprint.Blueprint {
	b := generations("Wheel")[0]
	b.Generation = generation
	properties := map[string]any{}
	for _, field := range fields {
		properties[field] = map[string]any{"type": "string"}
	}
	b.Spec.Type.Schema["properties"].(map[string]any)["spec"].(map[string]any)["properties"] = properties
	return b
}

func TestWiring_StoresDefinesAndServesABlueprint(t *testing.T) {
	c := newCluster(t, withFields(1, "one"))
	c.reconcile()
	crd := c.crd()
	if crd == nil || crd.Annotations[ownerUIDAnnotation] != "u" || crd.Annotations[ownerNameAnnotation] != "websites" {
		t.Fatalf("got CustomResourceDefinition %+v", crd)
	}
	if h, err := c.definitions.cache.history("websites"); err != nil || len(h) != 1 || h[0].generation != 1 {
		t.Errorf("got stored revisions %+v, %v", h, err)
	}
	if !c.served() {
		t.Error("the type is not served")
	}
	if accepted := c.condition(blueprint.Accepted); accepted == nil || accepted.Status != metav1.ConditionTrue {
		t.Errorf("got Accepted condition %+v", accepted)
	}
}

func TestWiring_UpdatesTheCRDForAChangedSchema(t *testing.T) {
	c := newCluster(t, withFields(1, "one"))
	c.reconcile()
	// The update must keep annotations set by other clients, including one that is not cached.
	crd := c.crd()
	crd.Annotations["example.com/note"] = "x"
	crd.Annotations["kubectl.kubernetes.io/last-applied-configuration"] = "{}"
	if err := c.crds.Tracker().Update(definitions, crd, ""); err != nil {
		t.Fatal(err)
	}
	c.update(withFields(2, "one", "two"))
	c.reconcile()
	crd = c.crd()
	fields := slices.Sorted(maps.Keys(crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties))
	if !slices.Equal(fields, []string{"one", "two"}) {
		t.Errorf("got fields %q", fields)
	}
	if crd.Annotations["example.com/note"] != "x" ||
		crd.Annotations["kubectl.kubernetes.io/last-applied-configuration"] != "{}" {
		t.Errorf("got annotations %v", crd.Annotations)
	}
	if d, _ := c.registry.get("websites"); d.cleansUpOnly() || d.running.generation != 2 {
		t.Errorf("got decision %+v", d)
	}
	updates := func() (n int) {
		for _, action := range c.crds.Actions() {
			if action.GetVerb() == "update" {
				n++
			}
		}
		return n
	}
	before := updates()
	c.reconcile()
	if n := updates() - before; n > 0 {
		t.Errorf("got %d updates to an unchanged CustomResourceDefinition", n)
	}
}

// The annotation does not change the generation, and the revision is not replaced.
func TestWiring_PausedBlueprintStaysServed(t *testing.T) {
	c := newCluster(t, withFields(1, "one"))
	c.reconcile()
	if paused := c.condition(instances.ConditionPaused); paused != nil {
		t.Errorf("got Paused condition %+v", paused)
	}
	before, _ := c.registry.get("websites")
	for _, paused := range []bool{true, false} {
		existing, err := c.server.Tracker().Get(blueprints, "", "websites")
		if err != nil {
			t.Fatal(err)
		}
		object := existing.(*unstructured.Unstructured).DeepCopy()
		object.SetAnnotations(map[string]string{instances.PausedAnnotation: strconv.FormatBool(paused)})
		if err := c.server.Tracker().Update(blueprints, object, ""); err != nil {
			t.Fatal(err)
		}
		c.reconcile()
		got := c.condition(instances.ConditionPaused)
		if got == nil || (got.Status == metav1.ConditionTrue) != paused {
			t.Errorf("paused %t: got condition %+v", paused, got)
		}
		now, _ := c.registry.get("websites")
		if now.running.reconcilers != before.running.reconcilers || now.running.reconcilers.SetPaused(paused) {
			t.Errorf("paused %t: the revision was replaced, or its instances are not paused or resumed", paused)
		}
	}
}

func TestWiring_RestoresALostType(t *testing.T) {
	c := newCluster(t, withFields(1, "one"))
	c.reconcile()
	lost := c.crd()
	if err := c.crds.Tracker().Delete(definitions, "", lost.Name); err != nil {
		t.Fatal(err)
	}
	delete(c.instances.Handlers, websites) // the engine stops serving a deleted type
	c.reconcile()
	again := c.crd()
	if again == nil {
		t.Fatal("the CustomResourceDefinition was not created again")
	}
	if again.Annotations[ownerUIDAnnotation] != "u" {
		t.Errorf("got annotations %v", again.Annotations)
	}
	if d, _ := c.registry.get("websites"); d.cleansUpOnly() || d.running.generation != 1 {
		t.Errorf("got decision %+v", d)
	}
}

func TestWiring_ServesARestoredNamedType(t *testing.T) {
	named := generations("Wheel")[0]
	crd := madeFor(t, named, "")
	crd.Annotations = map[string]string{allowedAnnotation: "websites"}
	named.Spec.Type = blueprint.Type{CRD: crd.Name}
	c := newCluster(t, named)
	if err := c.crds.Tracker().Add(crd); err != nil {
		t.Fatal(err)
	}
	c.reconcile()
	if !c.served() {
		t.Fatal("the type is not served")
	}
	if err := c.crds.Tracker().Delete(definitions, "", crd.Name); err != nil {
		t.Fatal(err)
	}
	c.reconcile()
	if d, _ := c.registry.get("websites"); !d.validation.gvr.Empty() {
		t.Fatalf("without the type: got decision %+v", d)
	}
	if err := c.crds.Tracker().Add(crd); err != nil {
		t.Fatal(err)
	}
	c.reconcile()
	d, _ := c.registry.get("websites")
	if d.cleansUpOnly() || d.rejection != nil || !c.served() {
		t.Errorf("with the type restored: served %t, got decision %+v", c.served(), d)
	}
	if serving := c.condition(blueprint.Accepted); serving == nil || serving.Status != metav1.ConditionTrue {
		t.Errorf("got Accepted condition %+v", serving)
	}
}

// The API server refuses the type of the second generation. Meanwhile, somebody deletes or changes the type of the
// served one.
func TestWiring_RepairsTheServedTypeWhileTheNextIsRefused(t *testing.T) {
	fields := func(crd *apiextensionsv1.CustomResourceDefinition) map[string]apiextensionsv1.JSONSchemaProps {
		return crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties
	}
	refuse := func(c *cluster, verb string, refused func(crd *apiextensionsv1.CustomResourceDefinition) bool) {
		c.crds.PrependReactor(verb, "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
			crd := action.(clienttesting.CreateAction).GetObject().(*apiextensionsv1.CustomResourceDefinition)
			return refused(crd), nil, apierrors.NewBadRequest("no")
		})
	}
	hasTwo := func(crd *apiextensionsv1.CustomResourceDefinition) bool {
		_, has := fields(crd)["two"]
		return has
	}
	for name, damage := range map[string]func(c *cluster, crd *apiextensionsv1.CustomResourceDefinition) error{
		"deleted": func(c *cluster, crd *apiextensionsv1.CustomResourceDefinition) error {
			return c.crds.Tracker().Delete(definitions, "", crd.Name)
		},
		"a field removed": func(c *cluster, crd *apiextensionsv1.CustomResourceDefinition) error {
			delete(fields(crd), "one")
			return c.crds.Tracker().Update(definitions, crd, "")
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, using(1, "one", "one"))
			c.reconcile()
			refuse(c, "update", hasTwo)
			refuse(c, "create", hasTwo)
			c.update(using(2, "two", "one", "two"))
			c.reconcile()
			if got := c.condition(blueprint.Accepted); got.Reason != reasonServerRejected {
				t.Fatalf("got condition %+v", got)
			}
			if err := damage(c, c.crd().DeepCopy()); err != nil {
				t.Fatal(err)
			}
			c.reconcile()
			now := c.crd()
			if now == nil || len(fields(now)) != 1 || fields(now)["one"].Type != "string" {
				t.Fatalf("the type was not repaired: %+v", now)
			}
			if running := c.running(); running.generation != 1 {
				t.Errorf("got served revision %+v", running)
			}
			if got := c.condition(blueprint.Accepted); got.Reason != reasonServerRejected {
				t.Errorf("got condition %+v", got)
			}
			writes := len(c.crds.Actions())
			if c.reconcile(); countVerb(c.crds.Actions()[writes:], "update")+countVerb(c.crds.Actions()[writes:], "create") > 0 {
				t.Errorf("the type was written again: %+v", c.crds.Actions()[writes:])
			}
		})
	}
}
