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

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/platformtest"
)

// cluster is a leader with fake engines. Its caches show what the API server has when sync is called.
type cluster struct {
	*testController
	t      *testing.T
	server *platformtest.Server
	crds   *crdfake.Clientset
}

func newCluster(t *testing.T, b *blueprint.Blueprint) *cluster {
	t.Helper()
	p, _ := newTestController(nil, nil, wheel, brake)
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

// reconcile syncs the caches and runs both engines until nothing is enqueued, several times.
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

// withFields returns a generation of the Blueprint whose type has these fields.
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

func TestWiring_AcceptedBlueprintIsStoredDefinedAndServed(t *testing.T) {
	c := newCluster(t, withFields(1, "one"))
	c.reconcile()
	crd := c.crd()
	if crd == nil || crd.Annotations[ownerUIDAnnotation] != "u" || crd.Annotations[ownerNameAnnotation] != "websites" {
		t.Fatalf("the CustomResourceDefinition is %+v", crd)
	}
	if h, err := c.definitions.cache.history("websites"); err != nil || len(h) != 1 || h[0].generation != 1 {
		t.Errorf("the stored revisions are %+v, %v", h, err)
	}
	if !c.served() {
		t.Error("the type is not served")
	}
	if accepted := c.condition(blueprint.Accepted); accepted == nil || accepted.Status != metav1.ConditionTrue {
		t.Errorf("the Accepted condition is %+v", accepted)
	}
}

func TestWiring_ChangedSchemaUpdatesTheCRD(t *testing.T) {
	c := newCluster(t, withFields(1, "one"))
	c.reconcile()
	// Annotations of others must survive the update, including one that the cache does not hold.
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
		t.Errorf("the fields are %q", fields)
	}
	if crd.Annotations["example.com/note"] != "x" ||
		crd.Annotations["kubectl.kubernetes.io/last-applied-configuration"] != "{}" {
		t.Errorf("the annotations are %v", crd.Annotations)
	}
	if d, _ := c.registry.get("websites"); d.cleansUpOnly() || d.running.generation != 2 {
		t.Errorf("the decision is %+v", d)
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
		t.Errorf("an unchanged CustomResourceDefinition was updated %d times", n)
	}
}

// The annotation does not change the generation, and the revision is not served again.
func TestWiring_PausedBlueprintStaysServed(t *testing.T) {
	c := newCluster(t, withFields(1, "one"))
	c.reconcile()
	if paused := c.condition(instances.ConditionPaused); paused != nil {
		t.Errorf("the Paused condition is %+v", paused)
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
			t.Errorf("paused %t: the condition is %+v", paused, got)
		}
		now, _ := c.registry.get("websites")
		if now.running.reconcilers != before.running.reconcilers || now.running.reconcilers.SetPaused(paused) {
			t.Errorf("paused %t: the revision was served again, or its instances do not follow", paused)
		}
	}
}

func TestWiring_TypeThatIsLostIsCreatedAndServedAgain(t *testing.T) {
	c := newCluster(t, withFields(1, "one"))
	c.reconcile()
	lost := c.crd()
	if err := c.crds.Tracker().Delete(definitions, "", lost.Name); err != nil {
		t.Fatal(err)
	}
	delete(c.instances.Handlers, websites) // as the engine does when the type is gone
	c.reconcile()
	again := c.crd()
	if again == nil {
		t.Fatal("the CustomResourceDefinition was not created again")
	}
	if again.Annotations[ownerUIDAnnotation] != "u" {
		t.Errorf("the annotations are %v", again.Annotations)
	}
	if d, _ := c.registry.get("websites"); d.cleansUpOnly() || d.running.generation != 1 {
		t.Errorf("the decision is %+v", d)
	}
}

func TestWiring_NamedTypeThatIsLostAndRestoredIsServedAgain(t *testing.T) {
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
		t.Fatalf("without the type, the decision is %+v", d)
	}
	if err := c.crds.Tracker().Add(crd); err != nil {
		t.Fatal(err)
	}
	c.reconcile()
	d, _ := c.registry.get("websites")
	if d.cleansUpOnly() || d.rejection != nil || !c.served() {
		t.Errorf("with the type again, it is served: %t, and the decision is %+v", c.served(), d)
	}
	if serving := c.condition(blueprint.Accepted); serving == nil || serving.Status != metav1.ConditionTrue {
		t.Errorf("the Accepted condition is %+v", serving)
	}
}
